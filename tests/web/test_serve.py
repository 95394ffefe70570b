"""The command `redis-history serve`."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from redis_history import HistoryStore, user
from redis_history.cli.commands import cli
from tests.support.servers import RealServer, free_port, wait_until
from tests.support.web import TOKEN, Serve, Stream, at, serve

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def failed(*arguments: str) -> Result:
    """The result of a command that ends automatically, in this process."""
    return CliRunner().invoke(cli, arguments)


async def test_from_nothing_to_a_live_conversation(server: RealServer, namespace: str) -> None:
    """With an existing index, a proxy's header for the client's address, and a new token."""
    with HistoryStore(server.url, namespace=namespace, language="german") as store, server.client() as client:
        store.append("c", user("Guten Tag!"))
        indexes = set(client.execute_command("FT._LIST"))
        with serve(server.url, namespace, "--max-streams-per-address", "2", token="") as view:
            assert len(view.token) >= 32, "a new one"
            async with httpx.AsyncClient(follow_redirects=True) as browser:
                await see(browser, view, store)
        assert set(client.execute_command("FT._LIST")) == indexes


async def see(browser: httpx.AsyncClient, view: Serve, store: HistoryStore) -> None:
    page = await browser.get(view.url)
    assert (page.status_code, str(page.url)) == (200, view.base)
    assert "<html" in page.text
    bearer = {"Authorization": f"Bearer {view.token}"}
    async with Stream(view.port, at("c", "events"), **bearer) as stream, Stream(view.port, **bearer) as listed:
        await stream.comment()
        await listed.event()
        store.append("c", user("Die Koffer sind da.", id="m"))
        assert await stream.messages(1) == ["m"]
        assert (await listed.event())[1]["last"]["text"] == "Die Koffer sind da."
        for address in ("10.0.0.1", "10.0.0.2"):
            async with Stream(view.port, X_Forwarded_For=address, **bearer) as third:
                assert third.status == 429, "a client can forge the header"
    hits = (await browser.get(view.base + "v1/search", params={"q": "Koffern"})).json()["hits"]
    assert [hit["message"]["id"] for hit in hits] == ["m"]
    status = (await browser.get(view.base + "v1/status")).json()
    assert status["read_only"] is True
    refused = await browser.post(view.base + at("c", "messages"), json={"text": "x"})
    assert (refused.status_code, refused.json()["code"]) == (403, "read_only")


def _connections() -> str:
    return Path("/proc/net/tcp").read_text()


@pytest.mark.proves("shutdown")
@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
async def test_serve_ends_with_open_streams(server: RealServer, namespace: str, how: signal.Signals) -> None:
    """Also with a client that does not read."""
    with serve(server.url, namespace, "--allow-writes") as view, HistoryStore(server.url, namespace=namespace) as store:
        async with httpx.AsyncClient(headers=BEARER) as client:
            assert (await client.post(view.base + at("c", "messages"), json={"text": "x"})).status_code == 201
        async with Stream(view.port, at("d", "events")) as one, Stream(view.port) as listed:
            await one.comment()
            await listed.event()
            stuck = await Stream(view.port, at("c", "events")).connect()
            await stuck.comment()
            stuck.writer.transport.pause_reading()
            if how == signal.SIGTERM:
                for _ in range(20):  # more than the socket buffers of both sides
                    store.append_many("c", [user("x" * 20_000) for _ in range(20)])
            assert view.end(how) == (0, view.greeting.replace("read-only", "may change conversations"))
            assert await one.event() is None
            while await listed.event() is not None:
                pass
            stuck.writer.transport.abort()


@pytest.mark.proves("slow-clients")
@pytest.mark.full
async def test_silent_connections_keep_nobody_out(server: RealServer, namespace: str) -> None:
    """More than the process may have open, with a stream of somebody who signed in before."""
    with serve(server.url, namespace, files=256) as view, HistoryStore(server.url, namespace=namespace) as store:
        async with Stream(view.port) as listed, httpx.AsyncClient(headers=BEARER, timeout=20) as client:
            await listed.event()
            silent = [await asyncio.open_connection("127.0.0.1", view.port) for _ in range(300)]
            for _, writer in silent[::2]:
                writer.write(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n")
            assert (await client.get(view.base + "v1/status")).status_code == 200
            store.append("c", user("x"))
            assert (await listed.event())[1]["conversation"] == "c"
            for _, writer in silent:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for _, writer in silent), return_exceptions=True)
        assert view.end(signal.SIGTERM)[1] == view.greeting, "nothing failed"


@pytest.mark.full
@pytest.mark.proves("slow-clients")
async def test_slow_clients_are_disconnected(server: RealServer, namespace: str) -> None:
    """They are silent, send a header or a body byte by byte, or do not read a long answer."""
    with (
        serve(server.url, namespace, "--allow-writes") as view,
        HistoryStore(server.url, namespace=namespace) as store,
    ):
        for _ in range(4):
            store.append_many("c", [user("x" * 50_000) for _ in range(70)])
        head = f"HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        change = f"POST /{at('c', 'messages')} {head}Content-Type: application/json\r\nContent-Length: 900\r\n\r\n"
        asked = (
            ("", ""),
            ("GET / HTTP/1.1\r\nx: ", "y"),
            (change, " "),
            (f"GET /{at('c', 'messages')}?limit=280 {head}\r\n", ""),
        )

        async def ask(first: str, more: str) -> float:
            """How long the connection lives for the server."""
            _, writer = await asyncio.open_connection("127.0.0.1", view.port, limit=1)  # reads hardly anything
            port, started = writer.get_extra_info("sockname")[1], time.monotonic()
            writer.write(first.encode())
            while f"0100007F:{view.port:04X} 0100007F:{port:04X} 01 " in _connections():
                assert time.monotonic() < started + 60, first
                writer.write(more.encode())
                await asyncio.sleep(0.2)
            writer.transport.abort()
            return time.monotonic() - started

        async with Stream(view.port) as listed:
            await listed.event()
            lives = await asyncio.gather(*(ask(*one) for one in asked))
            store.append("d", user("x"))
            while (await listed.event())[1]["conversation"] != "d":
                pass
        assert max(lives) < 30, lives


def test_wrong_arguments(server: RealServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--url", server.url, "--namespace", namespace, "serve", "--port")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        for options, why in (
            ([taken], f"cannot listen on port {taken} of 127.0.0.1: "),
            (["0", "--host", "no.such.host.invalid"], "--host"),
            (["0", "--host", "192.0.2.1"], "cannot listen"),
            (["70000"], "--port"),
        ):
            done = failed(*arguments, *options)
            assert (done.exit_code, done.stdout) == (2, "")
            assert why in done.stderr
    away = failed("--url", f"redis://user:secret@127.0.0.1:{free_port()}", "serve", "--port", "0")
    assert (away.exit_code, away.stdout, "secret" in away.stderr) == (3, "", False)
    monkeypatch.setenv("REDIS_HISTORY_TOKEN", "short")
    short = failed(*arguments, "0")
    assert (short.exit_code, short.stdout, "REDIS_HISTORY_TOKEN" in short.stderr) == (2, "", True)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    without = failed("serve")
    assert (without.exit_code, without.stdout) == (2, "")
    assert "pip install 'redis_history[cli,web]'" in without.stderr


@pytest.mark.proves("local-users")
@pytest.mark.full
def test_the_browser_opens_and_json_has_the_address(server: RealServer, namespace: str, tmp_path: Path) -> None:
    shown, browser, copy = tmp_path / "shown", tmp_path / "browser", tmp_path / "page"
    browser.write_text(f'#!/bin/sh\ncp "${{1#file://}}" {copy}\necho "$@" > {shown}.new && mv {shown}.new {shown}\n')
    browser.chmod(0o700)
    argv = [sys.executable, "-m", "redis_history.cli", "--json", "--url", server.url, "--namespace", namespace]
    argv += ["serve", "--port", "0", "--open"]
    env = {**os.environ, "BROWSER": str(browser)}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        url = json.loads(process.stdout.readline())["url"]
        base, _, token = url.partition("?token=")
        wait_until(shown.exists, "the browser")
        page = Path(shown.read_text().strip().removeprefix("file://"))
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
        link = re.findall(r"url=([^']+)", copy.read_text())[0]
        assert link.startswith(base)
        code = link.partition("?code=")[2]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for process_id in (process.pid, *(children.read_text().split() if children.exists() else [])):
            arguments = Path(f"/proc/{process_id}/cmdline").read_text()
            assert token not in arguments
            assert code not in arguments
        assert token not in shown.read_text() + copy.read_text()
        assert code not in shown.read_text()
        with httpx.Client() as entered, httpx.Client() as late:
            assert "set-cookie" in entered.get(link).headers
            assert entered.get(base + "v1/status").status_code == 200
            assert late.get(link).status_code == 401, "a code works once"
        process.terminate()
        assert process.communicate(timeout=20) == ("", "")
        assert not page.exists()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::1", marks=pytest.mark.full)])
def test_other_addresses(server: RealServer, namespace: str, host: str) -> None:
    with serve(server.url, namespace, "--host", host, "--allowed-host", "view.example") as view:
        for name, status in ((None, 200), ("view.example", 200), ("evil.example", 403)):
            headers = BEARER | ({"Host": name} if name else {})
            assert httpx.get(view.base + "v1/status", headers=headers).status_code == status
        errors = view.end()[1]
        assert ("Warning: listening on 0.0.0.0" in errors) == (host == "0.0.0.0")


def test_prices_are_checked_before_the_server_is_asked() -> None:
    for price in ("m-1", "m-1=2", "m-1=2/x", "=2/3"):
        result = failed("--url", "redis://127.0.0.1:1/0", "serve", "--price", price)
        assert (result.exit_code, "price" in result.output) == (2, True), price

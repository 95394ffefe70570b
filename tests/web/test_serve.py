"""The command `redis-history serve`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from redis_history import AsyncHistoryStore, HistoryStore, user
from redis_history.cli.commands import cli
from tests.support.servers import RealServer, free_port, wait_until
from tests.support.web import TOKEN, Lean, Serve, Stream, at, serve


def failed(*arguments: str) -> Result:
    """The result of a command that ends by itself, in this process."""
    return CliRunner().invoke(cli, arguments)


async def test_from_nothing_to_a_live_conversation(server: RealServer, namespace: str) -> None:
    browsing = httpx.AsyncClient(follow_redirects=True)
    with serve(server.url, namespace, token="") as view:
        assert len(view.token) >= 32, "a new one"
        async with browsing as browser:
            await see(browser, view, server, namespace)


async def see(browser: httpx.AsyncClient, view: Serve, server: RealServer, namespace: str) -> None:
    page = await browser.get(view.url)
    assert (page.status_code, str(page.url)) == (200, view.base)
    assert "<html" in page.text
    async with AsyncHistoryStore(server.url, namespace=namespace) as store:
        asked = {"Authorization": f"Bearer {view.token}"}
        async with Stream(view.port, at("c", "events"), **asked) as stream, Stream(view.port, **asked) as listed:
            await stream.opened()
            await listed.event()
            await store.append("c", user("Hello"))
            assert (await stream.event())[1]["messages"][0]["text"] == "Hello"
            assert (await listed.event())[1]["last"]["text"] == "Hello"
    assert [one["id"] for one in (await browser.get(view.base + "v1/conversations")).json()["conversations"]] == ["c"]
    status = (await browser.get(view.base + "v1/status")).json()
    assert (status["read_only"], status["address"]) == (True, server.url)
    refused = await browser.post(view.base + at("c", "messages"), json={"text": "x"})
    assert (refused.status_code, refused.json()["code"]) == (403, "read_only")


async def test_a_forged_client_address_is_ignored(server: RealServer, namespace: str) -> None:
    with serve(server.url, namespace, "--max-streams-per-address", "2") as view:
        asked = {"Authorization": f"Bearer {TOKEN}"}
        async with Stream(view.port, at("c", "events"), **asked), Stream(view.port, at("c", "events"), **asked):
            for address in ("10.0.0.1", "10.0.0.2"):
                async with Stream(view.port, at("c", "events"), X_Forwarded_For=address, **asked) as third:
                    assert third.status == 429


@pytest.mark.proves("shutdown")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_serve_ends_with_open_streams(server: RealServer, namespace: str, how: signal.Signals) -> None:
    with serve(server.url, namespace, "--allow-writes") as view:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            done = await client.post(view.base + at("c", "messages"), json={"text": "x"})
            assert done.status_code == 201
        async with Stream(view.port, at("c", "events")) as one, Stream(view.port) as listed:
            await one.opened()
            await listed.event()
            status, errors = view.end(how)
            assert (status, errors) == (0, view.greeting.replace("read-only", "may change conversations"))
            assert await one.event() is None
            assert await listed.event() is None


async def test_serve_ends_with_a_client_that_does_not_read(server: RealServer, namespace: str) -> None:
    with serve(server.url, namespace) as view, HistoryStore(server.url, namespace=namespace) as store:
        reader = await Lean.connect(view.port, at("c", "events"))
        await reader.opened.wait()
        reader.transport.pause_reading()
        for _ in range(20):  # more than the systems of both sides keep
            store.append_many("c", [user("x" * 20_000) for _ in range(20)])
        assert view.end() == (0, view.greeting)
        reader.transport.abort()


def test_a_port_that_is_taken(server: RealServer, namespace: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = failed("--url", server.url, "--namespace", namespace, "serve", "--port", str(port))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"redis-history: cannot listen on port {port} of 127.0.0.1: ")
    assert "--port" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--host", "no.such.host.invalid"), "--host"),
        (("--host", "192.0.2.1"), "cannot listen"),
        (("--port", "70000"), "--port"),
    ],
)
def test_wrong_arguments(server: RealServer, namespace: str, arguments: tuple[str, ...], why: str) -> None:
    done = failed("--url", server.url, "--namespace", namespace, "serve", "--port", "0", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert why in done.stderr


def test_a_short_token_and_an_unreachable_server(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    away = failed("--url", f"redis://user:secret@127.0.0.1:{free_port()}", "serve", "--port", "0")
    assert (away.exit_code, away.stdout, "secret" in away.stderr) == (3, "", False)
    monkeypatch.setenv("REDIS_HISTORY_TOKEN", "short")
    short = failed("--url", server.url, "serve", "--port", "0")
    assert (short.exit_code, short.stdout, "REDIS_HISTORY_TOKEN" in short.stderr) == (2, "", True)


def children(process_id: int) -> list[int]:
    """Processes that a process has started."""
    found = Path(f"/proc/{process_id}/task/{process_id}/children")
    return [int(one) for one in found.read_text().split()] if found.exists() else []


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = failed("serve")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "pip install 'redis_history[cli,web]'" in done.stderr


@pytest.mark.proves("local-users")
def test_the_browser_opens_and_json_tells_the_address(server: RealServer, namespace: str, tmp_path: Path) -> None:
    shown, browser, secret = tmp_path / "shown", tmp_path / "browser", tmp_path / "page"
    browser.write_text(f'#!/bin/sh\ncp "${{1#file://}}" {secret}\necho "$@" > {shown}.new && mv {shown}.new {shown}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IEXEC)
    argv = [sys.executable, "-m", "redis_history.cli", "--json", "--url", server.url, "--namespace", namespace]
    argv += ["serve", "--port", "0", "--open"]
    env = {**os.environ, "BROWSER": str(browser)}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        base, _, token = url.partition("?token=")
        wait_until(shown.exists, "the browser")
        page = Path(shown.read_text().strip().removeprefix("file://"))
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
        link = re.findall(r"url=([^']+)", secret.read_text())[0]
        assert link.startswith(base)
        code = link.partition("?code=")[2]
        for process_id in (process.pid, *children(process.pid)):
            arguments = Path(f"/proc/{process_id}/cmdline").read_bytes()
            assert token.encode() not in arguments
            assert code.encode() not in arguments
        assert token not in shown.read_text() + secret.read_text()
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


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
def test_other_addresses(server: RealServer, namespace: str, host: str) -> None:
    with serve(server.url, namespace, "--host", host, "--allowed-host", "view.example") as view:
        asked = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(headers=asked) as client:
            assert client.get(view.base + "v1/status").status_code == 200
            assert client.get(view.base + "v1/status", headers={"Host": "view.example"}).status_code == 200
            assert client.get(view.base + "v1/status", headers={"Host": "evil.example"}).status_code == 403
        errors = view.end()[1]
        assert ("Warning: listening on 0.0.0.0" in errors) == (host == "0.0.0.0")


async def test_serve_uses_the_existing_index(server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace, language="german") as store, server.client() as client:
        store.append("c", user("Die Koffer sind in Porto."))
        before = set(client.execute_command("FT._LIST"))
        with serve(server.url, namespace) as view:
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as browser:
                found = (await browser.get(view.base + "v1/search", params={"q": "Koffern"})).json()
        assert [hit["conversation"] for hit in found["hits"]] == ["c"]
        assert set(client.execute_command("FT._LIST")) == before

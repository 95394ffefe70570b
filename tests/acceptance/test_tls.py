"""Encrypted connections (rediss://) to a real server with test certificates, with both kinds of stores."""

import asyncio
import gc
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
import trustme

from redis_history import AsyncHistoryStore, HistoryStore, MessagesAppended, RetryPolicy, user
from redis_history.errors import BackendRefusedError, BackendUnavailableError, ConfigurationError
from tests.support.faces import open_store
from tests.support.servers import Start, free_port

BRIEF = RetryPolicy(deadline=1.0, first_wait=0.01, longest_wait=0.05)


@pytest.fixture(params=["async", pytest.param("sync", marks=pytest.mark.full)])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def write_authority(folder: Path, name: str) -> tuple[trustme.CA, Path]:
    """A certificate authority, and the file by which clients know it."""
    authority, path = trustme.CA(), folder / f"{name}.pem"
    authority.cert_pem.write_to_path(str(path))
    return authority, path


def issue(authority: trustme.CA, path: Path, *hosts: str) -> tuple[Path, Path]:
    """A certificate for these hosts, and its key."""
    issued = authority.issue_cert(*hosts)
    certificate, key = path.with_name(f"{path.stem}-{hosts[0]}.crt"), path.with_name(f"{path.stem}-{hosts[0]}.key")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    return certificate, key


class Secured:
    """A server that only speaks TLS over TCP, and the authority of its certificate."""

    def __init__(self, start: Start, folder: Path, clients: str, names: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.authority, self.path = write_authority(folder, "ours")
        self.port = free_port()
        certificate, key = issue(self.authority, self.path, *names)
        options = {
            "tls-port": self.port,
            "bind": "127.0.0.1",
            "tls-cert-file": certificate,
            "tls-key-file": key,
            "tls-ca-cert-file": self.path,
            "tls-auth-clients": clients,
            "requirepass": "secret",
        }
        flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        self.server = start(options=tuple(flags))

    def url(self, host: str = "127.0.0.1", port: int = 0, **options: object) -> str:
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in options.items())
        return f"rediss://:secret@{host}:{port or self.port}/0?{query}"


def client_options(authority: trustme.CA, path: Path) -> dict[str, Path]:
    certificate, key = issue(authority, path, "client")
    return {"ssl_certfile": certificate, "ssl_keyfile": key}


async def _use(store: Any) -> None:
    """Append, read and subscribe. `poll_interval` is so long that only the doorbell, encrypted too, can wake."""
    async with store.subscribe("c") as subscription:
        for number in range(5):
            appended = await store.append("c", user(f"naïve {number} " + "x" * 50_000))
            event = await subscription.get(timeout=10)
            assert isinstance(event, MessagesAppended)
            assert event.messages == (appended.message,)
        assert len(await store.get("c")) == 5
        assert [one.conversation_id for one in await store.list_conversations()] == ["c"]


@pytest.mark.proves("tls")
@pytest.mark.parametrize("how", ["url", "own client", "client certificate"])
async def test_append_get_and_subscribe(own_server: Start, tmp_path: Path, face: str, how: str) -> None:
    secured = Secured(own_server, tmp_path, "yes" if how == "client certificate" else "no")
    certificate = client_options(secured.authority, secured.path) if how == "client certificate" else {}
    url = secured.url(ssl_ca_certs=secured.path, **certificate)
    client: Any = None
    if how == "own client":
        client = (redis.Redis if face == "sync" else redis.asyncio.Redis).from_url(url)
    async with open_store(face, None if client else url, client=client, poll_interval=900) as store:
        await _use(store)
        if (face, how) == ("async", "url"):
            await asyncio.gather(*(store.append("many", user(str(number))) for number in range(30)))
            assert len(await store.get("many")) == 30
    if client is not None:
        await (asyncio.to_thread(client.close) if face == "sync" else client.aclose())


def test_an_event_loop_leaves_no_socket_open(own_server: Start, tmp_path: Path) -> None:
    """A subscription ends and two calls are cancelled: one waits for its reply, the other connects. In TLS, closing a
    connection takes a round trip, for which redis-py does not wait after a cancellation, so another call follows."""
    secured = Secured(own_server, tmp_path, "no")

    async def run() -> None:
        async with AsyncHistoryStore(secured.url(ssl_ca_certs=secured.path)) as store:
            await _use(store)
            calls = [asyncio.create_task(store.append("c", user("x" * 20_000))) for _ in range(2)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            assert {type(one) for one in await asyncio.gather(*calls, return_exceptions=True)} == {
                asyncio.CancelledError
            }
            assert len(await store.get("c")) >= 5

    gc.collect()
    asyncio.run(run())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in caught] == []


@pytest.mark.parametrize("certificate", ["none", "foreign"])
async def test_a_client_certificate_is_refused(own_server: Start, tmp_path: Path, face: str, certificate: str) -> None:
    """With TLS 1.3 the server says so after the handshake, and the client may see no more than a broken connection."""
    secured = Secured(own_server, tmp_path, "yes")
    own = client_options(*write_authority(tmp_path, "foreign")) if certificate == "foreign" else {}
    url = secured.url(ssl_ca_certs=secured.path, **own)
    async with open_store(face, url, retry=BRIEF) as store:
        with pytest.raises((BackendRefusedError, BackendUnavailableError), match="ssl_certfile") as caught:
            await store.append("c", user("x"))
    assert "secret" not in str(caught.value)
    with redis.Redis(unix_socket_path=str(secured.server.socket), password="secret") as client:
        assert client.dbsize() == 0


async def _is_refused(face: str, url: str, says: str) -> None:
    """At once and without a retry: a wrong certificate stays wrong."""
    retries: list[Any] = []
    retry = RetryPolicy(deadline=60, on_retry=retries.append)
    async with open_store(face, url, retry=retry) as store:
        with pytest.raises(BackendRefusedError, match=f"rediss://.*{says}") as caught:
            await store.append("c", user("x"))
        with pytest.raises(BackendRefusedError):
            await store.list_conversations()
        with pytest.raises(BackendRefusedError):
            await store.subscribe("c").open()
    assert "secret" not in str(caught.value)
    assert "ssl_ca_certs" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert retries == []


@pytest.mark.proves("named-errors")
async def test_an_untrusted_certificate_is_refused(own_server: Start, tmp_path: Path, face: str) -> None:
    secured = Secured(own_server, tmp_path, "no")
    await _is_refused(face, secured.url(), "certificate verify failed")
    _, other = write_authority(tmp_path, "other")
    await _is_refused(face, secured.url(ssl_ca_certs=other), "certificate verify failed")


async def test_a_certificate_for_another_host_is_refused(own_server: Start, tmp_path: Path, face: str) -> None:
    secured = Secured(own_server, tmp_path, "no", names=("localhost",))
    await _is_refused(face, secured.url(ssl_ca_certs=secured.path), "mismatch")
    async with open_store(face, secured.url("localhost", ssl_ca_certs=secured.path)) as store:
        await store.append("c", user("x"))


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_ca_path"])
def test_a_missing_certificate_file_is_reported_at_once(tmp_path: Path, option: str) -> None:
    for kind in (HistoryStore, AsyncHistoryStore):
        for scheme in ("rediss", "rediss+cluster"):
            url = f"{scheme}://user:secret@localhost:1/?{option}={quote(str(tmp_path / 'absent'))}"
            with pytest.raises(ConfigurationError, match=option) as caught:
                kind(url)
            assert "secret" not in str(caught.value)

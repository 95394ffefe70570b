"""Which servers are old or strange enough to be refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.backends.redis.server_info import Server, read_info
from redis_history.errors import UnsupportedServerError


def info(**fields: str) -> str:
    lines = ["# Server", *(f"{name}:{value}" for name, value in fields.items()), "executable:/opt/x:y", "", "# Clients"]
    return "\r\n".join(lines)


@pytest.mark.parametrize(
    ("fields", "server"),
    [
        ({"redis_version": "6.2.0"}, Server("redis", (6, 2, 0))),
        ({"redis_version": "7.4.1"}, Server("redis", (7, 4, 1))),
        ({"redis_version": "8.10.2"}, Server("redis", (8, 10, 2))),
        ({"redis_version": "255.255.255"}, Server("redis", (255, 255, 255))),
        ({"redis_version": "7.9.240.1"}, Server("redis", (7, 9, 240))),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "7.2.4"}, Server("valkey", (7, 2, 4))),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, Server("valkey", (9, 1, 0))),
    ],
    ids=str,
)
def test_servers_that_will_do(fields: dict[str, str], server: Server) -> None:
    assert read_info(info(**fields)) == read_info(info(**fields).encode()) == server
    assert read_info(info(**fields).replace("\r\n", "\n")) == server


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"redis_version": "2.8.9"}, r"redis 2.8.9.*redis 6.2"),
        ({"redis_version": "6.0.20"}, r"redis 6.0.20.*redis 6.2"),
        ({"redis_version": "6.1.240"}, r"redis 6.1.240.*redis 6.2"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.9"}, r"valkey 7.1.9.*valkey 7.2"),
    ],
)
def test_servers_that_are_too_old(fields: dict[str, str], says: str) -> None:
    with pytest.raises(UnsupportedServerError, match=says):
        read_info(info(**fields))


@pytest.mark.parametrize("said", ["", "unknown", "7.x.1", "seven", "9" * 5000, "."])
def test_servers_that_do_not_say(said: str) -> None:
    with pytest.raises(UnsupportedServerError) as caught:
        read_info(info(redis_version=said))
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("reply", [b"", b"\xff\xfe", b"HTTP/1.1 400 Bad Request\r\n\r\n", "# Server", b":::\r\n:"])
def test_replies_of_no_redis(reply: bytes | str) -> None:
    with pytest.raises(UnsupportedServerError):
        read_info(reply)


@pytest.mark.parametrize("reply", [None, 5, [], [b"redis_version:7.2.0"]])
def test_replies_that_are_no_text(reply: Any) -> None:
    with pytest.raises(UnsupportedServerError):
        read_info(reply)


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: f"redis_version:{text}"))
def test_any_reply_is_a_server_or_refused(reply: bytes | str) -> None:
    try:
        server = read_info(reply)
    except UnsupportedServerError:
        return
    assert server.version >= (6, 2)

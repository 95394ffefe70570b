"""Our reader of replies against redis-py's parsers, for bytes that come in any pieces."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis._parsers import _AsyncRESP2Parser, _AsyncRESP3Parser
from redis._parsers.encoders import Encoder
from redis.exceptions import BusyLoadingError, InvalidResponse

from redis_history.backends.redis.resp import NEED_MORE, ReplyReader


def bulk(kind: bytes, value: bytes) -> bytes:
    return b"%b%d\r\n%b\r\n" % (kind, len(value), value)


def aggregate(kind: bytes, values: list[bytes]) -> bytes:
    return b"%b%d\r\n%b" % (kind, len(values), b"".join(values))


strings = st.binary(max_size=20).map(lambda value: bulk(b"$", value)) | st.just(b"$4\r\n\r\n$1\r\n")
errors = st.sampled_from(["ERR no", "NOSCRIPT no", "MOVED 1 a:1", "WRONGTYPE no", "ERR é"]).map(str.encode)
lines = st.one_of(
    st.sampled_from([b"+\r\n", b"+OK\r\n", b"+a\rb\r\n"]),
    st.integers().map(lambda number: b":%d\r\n" % number),
    errors.map(lambda text: b"-" + text + b"\r\n"),
)
plain2 = strings | lines | st.sampled_from([b"$-1\r\n", b"*-1\r\n", b"*0\r\n"])
replies2 = st.recursive(plain2, lambda inner: st.lists(inner, max_size=4).map(lambda them: aggregate(b"*", them)))

plain3 = st.one_of(
    strings,
    lines,
    st.sampled_from([b"_\r\n", b"#t\r\n", b"#f\r\n", b"*0\r\n", b"~0\r\n", b"%0\r\n"]),
    st.integers().map(lambda number: b"(%d\r\n" % number),
    st.floats().map(lambda number: b",%b\r\n" % repr(number).encode()),
    st.binary(max_size=9).map(lambda value: bulk(b"=", b"txt:" + value)),
    errors.map(lambda text: bulk(b"!", text)),
)
pushes = st.lists(plain3, max_size=2).map(lambda them: aggregate(b">", [bulk(b"$", b"message"), *them]))


def nested3(inner: Any) -> Any:
    pairs = st.lists(st.tuples(strings, inner).map(b"".join), max_size=3)
    return st.one_of(
        st.builds(aggregate, st.sampled_from([b"*", b"~"]), st.lists(inner, max_size=4)),
        pairs.map(lambda them: aggregate(b"%", them)),
        st.tuples(pushes, inner).map(b"".join),
    )


replies3 = st.recursive(plain3, nested3, max_leaves=12)


async def by_redis_py(parser: Any, data: bytes) -> list[Any]:
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    parser.on_connect(SimpleNamespace(_reader=stream, encoder=Encoder("utf-8", "strict", False)))
    replies = []
    while not stream.at_eof():
        replies.append(await parser.read_response(disable_decoding=True))
    return replies


def by_us(*pieces: bytes) -> list[Any]:
    reader = ReplyReader(_AsyncRESP3Parser.parse_error)
    replies = []
    for piece in pieces:
        reader.feed(piece)
        while (reply := reader.take()) is not NEED_MORE:
            replies.append(reply)
    assert reader.empty
    return replies


@pytest.mark.parametrize(("parser", "replies"), [(_AsyncRESP2Parser, replies2), (_AsyncRESP3Parser, replies3)])
def test_replies_are_those_of_redis_py_wherever_they_are_cut(parser: Any, replies: Any) -> None:
    @given(st.lists(replies, min_size=1, max_size=3).map(b"".join))
    def check(data: bytes) -> None:
        wanted = repr(asyncio.run(by_redis_py(parser(65536), data)))  # repr: exceptions and NaN are not equal
        for cut in range(len(data)):
            assert repr(by_us(data[:cut], data[cut:])) == wanted
        assert repr(by_us(*(data[at : at + 1] for at in range(len(data))))) == wanted

    check()


def test_attributes_are_skipped_wherever_they_are() -> None:
    """redis-py knows none."""
    attributes = b"|1\r\n+ttl\r\n*2\r\n:1\r\n|0\r\n:2\r\n"
    data = attributes + b"*2\r\n" + attributes + b"$1\r\na\r\n" + attributes + b"%1\r\n+k\r\n" + attributes + b"_\r\n"
    assert by_us(data) == by_us(*(data[at : at + 1] for at in range(len(data)))) == [[b"a", {b"k": None}]]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$-2\r\n",
        b"$x\r\n",
        b"$?\r\n",
        b"*99999999999\r\n",
        b"$99999999999\r\n",
        b"$1\r\nab\r\n",
        b":1.5\r\n",
        b"%1\r\n*0\r\n:1\r\n",
        b"+" + b"a" * 100_000,
        b"*1\r\n" * 1000,
    ],
)
def test_invalid_replies_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidResponse, match="Protocol Error"):
        by_us(data)


def test_an_error_of_the_connection_is_raised_at_once() -> None:
    with pytest.raises(BusyLoadingError):
        by_us(b"*2\r\n-LOADING the data set\r\n")


@pytest.mark.parametrize(
    "data",
    [aggregate(b"*", [bulk(b"$", b"x" * 300)] * 14_000), bulk(b"$", b"x" * 16_000_000)],
    ids=["many", "long"],
)
def test_parsing_in_small_pieces_takes_linear_time(data: bytes) -> None:
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    begin = time.thread_time()
    (reply,) = by_us(*pieces)
    assert time.thread_time() - begin < 2.0, "a hundredth of it, if nothing is read twice"
    assert len(reply) in (14_000, 16_000_000)

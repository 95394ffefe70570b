"""Limits of a chat, expired rights and stops, which bound the cost of a visitor."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from redis_history import AsyncHistoryStore, Usage, assistant, tool_use, user
from redis_history.formats import from_vercel_ai
from redis_history.web import ChatLimits, Limits, LiveView, allow_all
from redis_history.web.client_messages import Asked
from tests.support.servers import DEADLINE, until
from tests.support.web import listening
from tests.web.chatting import CHAT, PATH, Gate, ask, asked, is_waiting, speaker, text_in
from tests.web.test_chat_visitors import CALL, WORDS, ag, ann, ui

#: Chats with few places, of which the second one has none.
LIMITED: list[dict[str, Any]] = [{"max_waiting": 3}, {"busy": "refuse"}]


async def test_a_stop_ends_what_waits(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    assert (await client.post(f"/{PATH}/stop")).status_code == 204, "there is nothing to stop"
    await store.append(CHAT, user("Hello"))
    unanswered = await client.post(f"/{PATH}/stop")
    assert (unanswered.status_code, unanswered.json()["code"]) == (409, "conflict")
    first = await gate.begin(client, asked("one"))
    second = asyncio.create_task(ask(client, asked("two", "u2")))
    await until(lambda: is_waiting(store))
    assert (await client.post(f"/{PATH}/stop")).status_code == 204
    ends = [chunks[-1]["type"] for chunks in await asyncio.gather(first, second)]
    assert (ends, gate.calls) == (["abort", "abort"], 1)


async def test_a_stop_before_the_run_begins(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate, participant=ann)
    asking = asyncio.create_task(ask(client, asked("one")))
    await until(lambda: store.get_conversation(CHAT))
    assert (await client.post(f"/{PATH}/stop")).status_code == 204
    assert (await asking)[-1]["type"] == "abort"


async def test_waiting_messages_are_limited(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate, max_waiting=2)
    first = await gate.begin(client, asked("0", "m0"))
    waiting = []
    for number in (1, 2):
        waiting.append(asyncio.create_task(ask(client, asked(f"{number}", f"m{number}"))))
        await until(lambda number=number: is_waiting(store, number))
    refused = await client.post("", json=asked("3", "m3"))
    assert (refused.status_code, "max_waiting" in refused.json()["detail"]) == (429, True)
    assert await store.get_message(CHAT, "m3") is None
    copied = asyncio.Event()
    copy = asyncio.create_task(ask(client, asked("2", "m2"), copied))  # has its place
    await copied.wait()
    gate.open.set()
    found = await asyncio.gather(first, *waiting, copy)
    assert [text_in(chunks) for chunks in found] == ["first last"] * 4


@pytest.mark.proves("bounded-requests")
@pytest.mark.parametrize("ends_in_a_copy", [True, False])
async def test_every_message_of_a_request_counts(serve: Any, store: AsyncHistoryStore, ends_in_a_copy: bool) -> None:
    """A client of AG-UI may send several, and a copy of an answered one behind them."""
    gate = Gate()
    client, strict = [await serve(gate, protocol="ag-ui", participant=ann, **more) for more in LIMITED]

    def said(*names: str) -> dict[str, Any]:
        copy = ("u1",) if ends_in_a_copy and names != ("u1",) else ()
        return ag(*({"id": name, "role": "user", "content": name} for name in (*names, *copy)))

    asking = [asyncio.create_task(client.post("", json=said("u1")))]
    await gate.begun.wait()
    busy = await strict.post("", json=said("no"))
    assert (busy.status_code, busy.json()["code"]) == (409, "conflict")
    for sent, status in ((4, 429), (2, 200), (2, 429), (1, 200), (1, 429)):
        have = len(await store.get(CHAT, roles=["user"]))
        body = said(*(f"m{have}.{number}" for number in range(sent)))
        if status == 200:
            asking.append(asyncio.create_task(client.post("", json=body)))
            await until(lambda have=have, sent=sent: has_messages(store, have + sent))
        else:
            refused = await client.post("", json=body)
            assert (refused.status_code, "max_waiting" in refused.json()["detail"]) == (429, True)
            assert len(await store.get(CHAT, roles=["user"])) == have
    gate.open.set()
    assert {answered.status_code for answered in await asyncio.gather(*asking)} == {200}
    await store.set_budget("ann", tokens=1)
    await store.append(CHAT, assistant("x", usage=Usage(input_tokens=10)))
    have = len(await store.get(CHAT))
    assert (await client.post("", json=said("late"))).status_code == 402
    assert len(await store.get(CHAT)) == have


async def has_messages(store: AsyncHistoryStore, count: int) -> bool:
    return len(await store.get(CHAT, roles=["user"])) == count


async def test_streams_and_answers_of_a_user_are_limited(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    limits = ChatLimits(streams_per_user=2, answers_per_user=1, streams=3)
    client = await serve(gate, participant=ann, limits=limits)
    first = await gate.begin(client, asked("one"))

    async def send(who: str, **more: Any) -> httpx.Response:
        return await client.post("", json=asked("x", "x") | more, headers={"user": who})

    refused = await send("ann", id="other")
    assert (refused.status_code, "answers_per_user" in refused.json()["detail"]) == (429, True)
    assert await store.get_conversation("other") is None
    async with client.stream("GET", f"/{PATH}/stream") as response:
        assert response.status_code == 200
        refused = await client.get(f"/{PATH}/stream")
        assert (refused.status_code, "streams_per_user" in refused.json()["detail"]) == (429, True)
        async with client.stream("GET", f"/{PATH}/stream", headers={"user": "bob"}) as other:
            assert other.status_code == 200
            refused = await client.get(f"/{PATH}/stream", headers={"user": "eve"})
            assert (refused.status_code, "ChatLimits(streams=" in refused.json()["detail"]) == (503, True)
    gate.open.set()
    await first
    assert text_in(await ask(client, asked("two", "u2", id="other"))) == "first last"  # there is room again


async def test_messages_of_a_response_are_limited(serve: Any, store: AsyncHistoryStore) -> None:
    for protocol in ("ai-sdk", "ag-ui"):
        client = await serve(speaker(store), protocol=protocol, limits=ChatLimits(messages=30_000))
        for number in range(30):
            await store.append_many(protocol, [user(f"{number}" + "x" * 2000), assistant("yes"), assistant("it is")])
        found = await client.get(f"/{protocol}/messages")
        assert 20_000 < len(found.content) < 40_000
        assert (found.json()[0]["role"], found.json()[-1]["role"]) == ("user", "assistant")
        await store.append(protocol, user("x" * 40_000))
        assert len((await client.get(f"/{protocol}/messages")).json()) == 1  # at least the newest


async def test_a_request_reads_only_what_it_needs(
    serve: Any, store: AsyncHistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    get = AsyncHistoryStore.get

    async def counted(self: AsyncHistoryStore, *args: Any, **options: Any) -> Any:
        found = await get(self, *args, **options)
        read.extend(one.text for one in found)
        return found

    async def answer(run: Any) -> None:
        await run.append(assistant("Yes.", tool_use("c", "ask", {})))

    client = await serve(answer, client_tools=["ask"])
    await store.append_many(CHAT, [user(f"{number}") for number in range(300)])
    monkeypatch.setattr(AsyncHistoryStore, "get", counted)
    chunks = await ask(client, asked("Hello"))
    assert read == ["Yes."]
    output = {"type": "tool-ask", "toolCallId": "c", "state": "output-available", "output": "red"}
    await ask(client, {"id": CHAT, "messages": [ui(output, role="assistant", id_=chunks[0]["messageId"])]})
    async with client.stream("GET", f"/{PATH}/stream") as response:
        assert response.status_code == 204
    assert len(read) < 70


async def test_a_stream_ends_when_its_right_is_gone(serve: Any, store: AsyncHistoryStore) -> None:
    gate, allowed = Gate(), True
    client = await serve(gate, authorize=lambda *_: allowed, limits=ChatLimits(reauthorize=1e-6))

    async def follow(method: str, path: str, body: Any) -> str:
        text = ""
        async with client.stream(method, path, json=body) as response:
            async for chunk in response.aiter_text():
                text += chunk
                following.release()
        return text

    following = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(follow("POST", "", asked("Hello")))]
    await gate.begun.wait()
    tasks.append(asyncio.create_task(follow("GET", f"/{PATH}/stream", None)))
    for _ in range(2):
        await following.acquire()
    allowed = False
    gate.open.set()
    for text in await asyncio.gather(*tasks):
        assert "last" not in text
        assert "Reconnect" in text.splitlines()[-2]

    async def has_ended() -> bool:
        return (await store.get(CHAT))[-1].status != "streaming"

    await until(has_ended)
    assert (await store.get(CHAT))[-1].text == "first last"  # the answer itself goes on


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def ui_body(messages: bytes) -> bytes:
    return b'{"id":"x","messages":' + messages + b"}"


def ag_body(messages: bytes) -> bytes:
    return b'{"threadId":"x","runId":"r","messages":' + messages + b"}"


def many(one: bytes, count: int) -> bytes:
    return b"[" + (one + b",") * count + one + b"]"


SAID = b'{"id":"m","role":"user","content":""}'
LARGE: dict[str, tuple[str, bytes]] = {
    "parts": ("ai-sdk", ui_body(b'[{"id":"m","role":"user","parts":' + many(b'{"type":"a"}', 300_000) + b"}]")),
    "levels": ("ai-sdk", ui_body(b'[{"id":"m","role":"user","parts":[' + nested(900) + b"]}]")),
    "more levels": ("ai-sdk", ui_body(nested(2_000_000))),
    "messages": ("ai-sdk", ui_body(many(b'{"id":"","role":"user"}', 150_000))),
    "empty messages": ("ag-ui", ag_body(many(b"{}", 1_300_000))),
    "small messages": ("ag-ui", ag_body(many(SAID, 100_000))),
    "items": ("ag-ui", ag_body(SAID.replace(b'""', many(b"{}", 1_000_000)).join([b"[", b"]"]))),
}


@pytest.mark.proves("bounded-requests")
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.full
async def test_large_requests_are_refused_and_delay_nobody(serve: Any, store: AsyncHistoryStore, name: str) -> None:
    protocol, body = LARGE[name]
    for allowed in (False, True):
        client = await serve(speaker(store), protocol=protocol, authorize=lambda *_, allowed=allowed: allowed)
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            loop = asyncio.get_running_loop()
            last = loop.time()
            while True:
                await asyncio.sleep(0.005)
                last, longest = loop.time(), max(longest, loop.time() - last)

        ticking = asyncio.create_task(tick())
        response = await client.post("", content=body, headers={"content-type": "application/json"})
        ticking.cancel()
        assert response.status_code in ((400, 413) if allowed or name == "more levels" else (403,)), response.text
        assert len(response.content) < 1000
        assert longest < 1  # seconds; 22 before
    assert await store.get_conversation("x") is None


async def test_a_body_above_the_limit_says_what_to_do(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), limits=ChatLimits(body=2000))
    all_ = [ui(WORDS, id_=f"u{number}") for number in range(100)]
    for content in (json.dumps({"id": CHAT, "messages": all_}).encode(), chunked({"id": CHAT, "messages": all_})):
        response = await client.post("", content=content, headers={"content-type": "application/json"})
        assert (response.status_code, "ChatLimits(body=" in response.json()["detail"]) == (413, True)
    await ask(client, {"id": CHAT, "messages": all_[-1:]})


class Upload:
    """The body of a request, which is sent up to its last bytes until it may end."""

    def __init__(self, body: Any) -> None:
        self._body = json.dumps(body).encode()
        self.may_end = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body[:-10]
        await self.may_end.wait()
        yield self._body[-10:]


JSON = {"content-type": "application/json"}


async def test_bodies_are_limited_together(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), limits=ChatLimits(bodies=300_000))
    upload = Upload(asked("x" * 200_000))
    first = asyncio.create_task(client.post("", content=upload, headers=JSON))

    async def refusal() -> httpx.Response | None:
        response = await client.post("", json=asked("y" * 200_000, "u2") | {"id": "other"})
        return response if response.status_code == 503 else None

    refused = await until(refusal)
    assert ("ChatLimits(bodies=" in refused.json()["detail"], refused.headers["retry-after"]) == (True, "5")
    typed = await client.post("", json=asked("z" * 20_000) | {"id": "typed"})
    assert typed.status_code == 200
    upload.may_end.set()
    assert (await first).status_code == 200
    assert await refusal() is None


async def test_a_body_that_does_not_come_is_given_up(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), limits=ChatLimits(patience=0.05))
    await check_given_up(client.base_url.port, "/api/chat")
    view = LiveView(store, authorize=allow_all, read_only=False, limits=Limits(patience=0.05))
    async with listening(view) as port, view:
        await check_given_up(port, "/v1/conversations/c/messages")
    assert await store.list_conversations() == []


async def check_given_up(port: int | None, path: str) -> None:
    # A client of HTTP reads no response before it has sent its request.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    writer.write(head.encode() + b'{"id":')
    async with asyncio.timeout(DEADLINE):
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        assert b'"too_slow"' in await reader.readuntil(b"}")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("protocol", ["ai-sdk", "ag-ui"])
async def test_a_stream_does_not_keep_its_request(serve: Any, store: AsyncHistoryStore, protocol: str) -> None:
    """It may have 16 MB, and the stream lasts as long as its answer."""
    gate = Gate()
    client = await serve(gate, protocol=protocol)
    large = "large " * 10_000
    body = asked(large) if protocol == "ai-sdk" else ag({"id": "u1", "role": "user", "content": large})
    async with client.stream("POST", "", json=body) as response:
        chunks = response.aiter_text()
        await anext(chunks)
        await gate.begun.wait()
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Asked) and one.messages]
        gate.open.set()
        assert "last" in "".join([chunk async for chunk in chunks])


async def chunked(body: Any) -> Any:
    """The request does not have a Content-Length."""
    for byte in json.dumps(body).encode():
        yield bytes([byte])


@pytest.mark.parametrize("change", ["result", "data", "data without an id", "file", "approval"])
@pytest.mark.parametrize("protocol", ["ai-sdk", "ag-ui"])
@pytest.mark.full
async def test_an_edit_of_any_part_reaches_its_readers(
    serve: Any, store: AsyncHistoryStore, protocol: str, change: str
) -> None:
    """Otherwise their stream ends, so that they read again."""

    def parts(value: str) -> list[Any]:
        return [
            {"type": "tool-find", "toolCallId": "k", "state": "output-available", "input": {},
             "output": value if change == "result" else "x"},
            {"type": "data-job", "id": "j", "data": value if change == "data" else "x"},
            {"type": "data-log", "data": value if change == "data without an id" else "x"},
            {"type": "file", "url": f"https://x.y/{value if change == 'file' else 'x'}", "mediaType": "image/png"},
            CALL | {"state": "approval-requested", "approval": {"id": value if change == "approval" else "x"}},
        ]  # fmt: skip

    gate = Gate()

    async def answer(run: Any) -> None:
        await run.append_many(from_vercel_ai([ui(*parts("old-value"), role="assistant", id_="a")]))
        await gate(run)

    client = await serve(answer, protocol=protocol)
    body = asked("Hello") if protocol == "ai-sdk" else ag({"id": "u1", "role": "user", "content": "Hello"})
    text = ""
    async with client.stream("POST", "", json=body) as response:
        async for chunk in response.aiter_text():
            text += chunk
            if "first " in text and not gate.open.is_set():
                for new in from_vercel_ai([ui(*parts("new-value"), role="assistant", id_="a")]):
                    await store.update_message(CHAT, new)
                gate.open.set()
    is_cut = "Reconnect" in text
    if protocol == "ag-ui" and change == "approval":
        assert (is_cut, "new-value" in text) == (False, True)  # the end of the run names what is open
    elif protocol == "ag-ui" and change != "result":
        assert (is_cut, "new-value" in text) == (False, False)  # the protocol does not carry it
    elif protocol == "ai-sdk" and change not in ("result", "data"):
        assert is_cut
    else:
        assert (is_cut, text.count("new-value")) == (False, 1)

# ruff: noqa: E501 -- items as the SDK writes them
"""OpenAI Agents: the tests that the framework has for its Redis session, encryption, settings, and whole pairs."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage
from agents.extensions.memory.encrypt_session import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession, Session, SessionSettings
from openai.types.responses import ResponseOutputMessage

from redis_history import HistoryRestored, ReasoningPart, TextPart, assistant, tool, tool_result, tool_use, user
from redis_history.errors import ConfigurationError, InvalidConversationIdError, InvalidMessageError
from redis_history.integrations.openai_agents import AgentsSession
from tests.support.servers import until

CONFIG = RunConfig(tracing_disabled=True)


class Says(Model):
    """A model of the Responses API that gives these answers in turn, and streams each word by word."""

    def __init__(self, *texts: str) -> None:
        self._texts = iter(texts)

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        content = [{"type": "output_text", "text": next(self._texts), "annotations": []}]
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}
        output = [ResponseOutputMessage.model_validate(message)]
        return ModelResponse(output=output, usage=Usage(), response_id="resp_1")

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def said(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


REPLY = [
    {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "c2ln"},
    {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": '{"q": "x"}', "status": "completed"},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "find", "arguments": "not json"},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
]  # fmt: skip


async def test_items_come_back_equal(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    assert isinstance(session, Session)
    items = [said("Hi"), *REPLY, said("Fine.", "assistant"), said("a\u2028b \\n"), said("")]
    await session.add_items(items)
    await session.add_items([])
    assert await session.get_items() == items
    for limit in (0, -1, 1, 2, 3, 50):
        assert await session.get_items(limit=limit) == (items[-limit:] if limit > 0 else [])
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None


async def test_pop_removes_the_newest_item(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    await session.add_items([said("Hi"), *REPLY])
    for expected in [*REPLY[::-1], said("Hi")]:
        left = await session.get_items()
        assert await session.pop_item() == expected
        assert await session.get_items() == left[:-1]
    assert await session.pop_item() is None


async def test_pop_removes_one_item_of_a_message_of_another_program(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    calls = [tool_use(str(n), "find", {"n": n}) for n in range(3)]
    thought = ReasoningPart("hm", signature="c2ln", provider_meta={"anthropic": {"type": "thinking"}})
    said_before = [
        user("Weather?", tool_use("odd", "find")),
        assistant(thought, *calls),
        tool(*(tool_result(str(n), "rain") for n in range(3)), TextPart("All of them.")),
        assistant("Rain. ", thought, "Sun. ", "Bye."),
    ]
    await async_store.append_many("s", said_before)
    items = await session.get_items()
    assert len(items) == 2 + 3 + 4 + 3
    while items:
        assert await session.pop_item() == items.pop()
        assert await session.get_items() == items
    assert await session.pop_item() is None


async def test_a_live_reply_is_no_item_until_it_ends(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    await session.add_items([said("first"), said("q")])
    texts = ["half an ans", "another"]

    async def both_stream() -> bool:
        return [one.text for one in await async_store.get("s") if one.status == "streaming"] == texts

    async with async_store.stream("s") as reply, async_store.stream("s") as other:
        await reply.write(texts[0])
        await other.write(texts[1])
        await until(both_stream, "two replies")
        assert await session.get_items() == [said("first"), said("q")]
        assert await session.get_items(limit=1) == [said("q")]
        assert await session.pop_item() == said("q")
    assert await session.get_items() == [said("first"), *(said(text, "assistant") for text in texts)]


async def test_a_limit_leaves_out_items_that_need_one_before_them(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    items = [*REPLY, said("q")]
    await session.add_items(items)
    # Without its reasoning, the API rejects the calls of a reply, and without these their outputs.
    assert [len(await session.get_items(limit=limit)) for limit in range(1, 8)] == [1, 1, 1, 1, 1, 1, 7]
    await session.clear_session()
    await session.add_items(items[1:])
    assert [len(await session.get_items(limit=limit)) for limit in range(1, 7)] == [1, 1, 1, 3, 5, 6]
    assert await session.get_items(limit=4) == [items[3], items[5], items[6]]
    await session.clear_session()
    request = {"type": "mcp_approval_request", "id": "a", "name": "f", "arguments": "{}", "server_label": "s"}
    response = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}
    await session.add_items([request, response])
    assert [await session.get_items(limit=limit) for limit in (1, 2)] == [[], [request, response]]


async def test_a_limit_keeps_items_of_other_models_without_their_reasoning(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    text = {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "x", "annotations": []}],
    }
    items = [{"type": "reasoning", "summary": [], "id": "__fake_id__"}, {**text, "id": "__fake_id__"}]
    await session.add_items(items)
    assert await session.get_items(limit=1) == items[1:]


async def test_the_limit_of_the_settings(async_store: Any) -> None:
    session = AgentsSession("s", async_store, session_settings=SessionSettings(limit=2))
    await session.add_items([said(str(n)) for n in range(5)])
    assert session.session_settings == SessionSettings(limit=2)
    assert await session.get_items() == [said("3"), said("4")]
    assert len(await session.get_items(limit=4)) == 4
    session.session_settings = None
    assert len(await session.get_items()) == 5
    assert AgentsSession("s", async_store).session_settings == SessionSettings()
    assert AgentsSession("s", async_store, session_settings={"limit": 3}).session_settings == SessionSettings(limit=3)
    wrong: Any
    for wrong in ({"most": 3}, 7, "limit"):
        with pytest.raises(ConfigurationError, match="session_settings"):
            AgentsSession("s", async_store, session_settings=wrong)
    with pytest.raises(InvalidConversationIdError):
        AgentsSession("", async_store)


async def test_an_encrypted_session_over_it(async_store: Any) -> None:
    inner = AgentsSession("s", async_store)
    session = EncryptedSession("s", inner, "a secret")
    items = [said("Hi"), *REPLY, said("Fine.", "assistant")]
    await session.add_items(items[:3])
    await session.add_items(items[3:])
    assert await session.get_items() == items
    assert "I look." not in repr(await async_store.get("s"))
    assert await session.get_items(limit=2) == items[-2:]
    session.session_settings = SessionSettings(limit=3)
    assert await session.get_items() == items[-3:]
    assert [await session.pop_item() for _ in items] == items[::-1]
    assert await session.pop_item() is None


async def test_items_are_returned_as_they_were_given(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    items = [
        {"id": "msg_1"},
        {"type": "reasoning", "summary": [], "encrypted_content": "c2ln"},  # reasoning_item_id_policy="omit"
        {"type": "reasoning", "id": None, "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"n": 1180591620717411303424}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "new", "n": 2**70}]},
        {"type": "message", "role": "user", "content": "x", "n": 2**70},
    ]
    await session.add_items(items)
    assert await session.get_items() == items


async def test_messages_of_other_frameworks_are_items(async_store: Any) -> None:
    await async_store.append_many(
        "s", [user("hi"), assistant("I look.", tool_use("c", "find", {"q": 1})), tool(tool_result("c", "rain"))]
    )
    assert await AgentsSession("s", async_store).get_items(limit=3) == [
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c", "name": "find", "arguments": '{"q":1}'},
        {"type": "function_call_output", "call_id": "c", "output": "rain"},
    ]


@pytest.mark.parametrize("of_one_message", [True, False])
async def test_concurrent_pops_return_different_items(async_store: Any, of_one_message: bool) -> None:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(6)]
    items = calls if of_one_message else [said(str(n)) for n in range(6)]
    await AgentsSession("s", async_store).add_items(items)
    assert len(await async_store.get("s")) == (1 if of_one_message else 6)
    popped = await asyncio.gather(*(AgentsSession("s", async_store).pop_item() for _ in range(8)))
    assert sorted((item for item in popped if item), key=str) == items
    assert await async_store.get("s") == []


async def test_the_context_of_a_run_reaches_a_subclass(async_store: Any) -> None:
    seen = []

    class Watched(AgentsSession):
        async def add_items(self, items: Any, *, wrapper: Any = None) -> None:
            seen.append(wrapper.context)
            await super().add_items(items, wrapper=wrapper)

    agent = Agent(name="a", model=Says("Hello."))
    await Runner.run(agent, "Hi", session=Watched("s", async_store), context={"tenant": 7}, run_config=CONFIG)
    assert seen
    assert all(context == {"tenant": 7} for context in seen)


async def run_with_compaction(inner: AgentsSession, client: Any) -> None:
    session = OpenAIResponsesCompactionSession(
        "s", inner, client=client, should_trigger_compaction=lambda _: True, compaction_mode="input"
    )
    await Runner.run(Agent(name="a", model=Says("Hello.")), "Hi", session=session, run_config=CONFIG)


class Compacts:
    """A client of OpenAI whose compaction returns a summary, after `meanwhile` was called."""

    def __init__(self, meanwhile: Any) -> None:
        self.responses, self._meanwhile, self.calls = self, meanwhile, 0

    async def compact(self, **_: Any) -> Any:
        self.calls += 1
        await self._meanwhile()
        output = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "c2ln"}]
        return SimpleNamespace(output=output, usage=None)


async def test_compaction_replaces_the_items_in_one_change(async_store: Any) -> None:
    """No reader sees an empty session."""
    inner = AgentsSession("s", async_store)
    await inner.add_items([said("Hi"), *REPLY])
    before = await inner.get_items()
    seen = []
    async with async_store.subscribe("s") as changes:

        async def nothing() -> None: ...

        session = OpenAIResponsesCompactionSession("s", inner, client=Compacts(nothing))  # type: ignore[arg-type]
        await session.run_compaction({"force": True, "compaction_mode": "input"})
        while not seen or not isinstance(seen[-1], HistoryRestored):
            seen.append(await changes.get(5))
    assert [type(event) for event in seen] == [HistoryRestored]
    after = await inner.get_items()
    assert [item.get("type") for item in after] == ["compaction"]
    assert len(before) == 7


@pytest.mark.parametrize("concurrent", [False, True])
async def test_automatic_compaction_loses_no_concurrent_append(async_store: Any, store: Any, concurrent: bool) -> None:
    async def other_process() -> None:
        if concurrent:
            store.append("s", user("from another process"))

    client = Compacts(other_process)
    inner = AgentsSession("s", async_store)
    await inner.add_items([said("Earlier")])
    await run_with_compaction(inner, client)
    left = [message.text for message in store.get("s")]
    assert client.calls == 1
    assert left == (["Earlier", "Hi", "Hello.", "from another process"] if concurrent else [""])


async def test_automatic_compaction_loses_no_live_reply(async_store: Any) -> None:
    async def half() -> bool:
        return [one.text for one in await async_store.get("s")] == ["Earlier", "half"]

    inner = AgentsSession("s", async_store)
    await inner.add_items([said("Earlier")])
    async with async_store.stream("s") as reply:
        await reply.write("half")
        await until(half, "the reply")
        await run_with_compaction(inner, Compacts(half))
        await reply.write(" and half")
    assert [one.text for one in await async_store.get("s")] == ["Earlier", "half and half", "Hi", "Hello."]


@pytest.mark.parametrize("kind", [AgentsSession, SQLiteSession])
async def test_a_replacement_prunes_the_oldest_items(async_store: Any, kind: Any) -> None:
    for number, (limit, start, old, expected) in enumerate(
        [
            (2, 0, 2, []),
            (2, 1, 2, ["new 0"]),
            (3, 2, 1, ["new 0", "new 1"]),
            (4, 1, 3, []),
        ]
    ):
        session = kind(f"s{number}", async_store) if kind is AgentsSession else kind(f"s{number}")
        items = [said(f"old {at}") for at in range(old)] + [said(f"new {at}") for at in range(4 - old)]
        await session.add_items(items)
        snapshot = await session._get_compaction_snapshot(limit, prune_prefix=lambda item: "old" in item["content"])
        assert await snapshot.replace_suffix(start, [said("in short")])
        kept = [item["content"] for item in await session.get_items()]
        assert kept == [*expected, "in short"], number
        if kind is SQLiteSession:
            session.close()


async def test_a_reply_that_is_pruned_in_part_is_split(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    await session.add_items([*REPLY, said("new")])
    snapshot = await session._get_compaction_snapshot(1, prune_prefix=lambda item: item.get("type") != "function_call")
    assert await snapshot.replace_suffix(0, [])
    assert await session.get_items() == REPLY[2:]


async def test_a_subclass_compacts_in_one_change_unless_it_changes_items(async_store: Any) -> None:
    class Named(AgentsSession):
        def close(self) -> None:
            raise NotImplementedError

    class Changes(AgentsSession):
        async def add_items(self, items: Any, *, wrapper: Any = None) -> None:
            await super().add_items([{**item, "content": item["content"].upper()} for item in items], wrapper=wrapper)

    for kind, is_atomic in ((Named, True), (Changes, False)):
        session = kind("s", async_store)
        await session.add_items([said("a")])
        assert await session._atomic_replace_items([said("b")]) is is_atomic
        assert (await session._get_compaction_snapshot(1) is not None) is is_atomic


async def test_items_that_are_no_dicts_are_refused(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    wrong: Any
    for wrong in ([3], ["text"], "text", {"role": "user"}, 3):
        with pytest.raises(InvalidMessageError, match="items"):
            await session.add_items(wrong)
    assert await async_store.get_conversation("s") is None


async def test_a_part_of_the_items_is_replaced(async_store: Any) -> None:
    session = AgentsSession("s", async_store)
    items = [said("old"), *REPLY, said("new")]
    await session.add_items(items)
    for count, start, complete in ((8, 0, True), (20, 3, True), (5, 1, False), (1, 0, False)):
        snapshot = await session._get_compaction_snapshot(count)
        assert (snapshot.items, snapshot.complete) == (items[-count:], complete)
        assert await snapshot.replace_suffix(start, [said("in short")])
        assert await session.get_items() == [*items[: max(8 - count, 0) + start], said("in short")]
        assert not await snapshot.replace_suffix(start, []), "there was another write"
        await session._atomic_replace_items(items)
        assert await session.get_items() == items

"""Operations of other callers during a run, and the remains of a run that ended early."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from redis_history import Conversation, assistant, errors, text, tool, tool_result, tool_use, user
from redis_history.formats import paired, to_anthropic, to_gemini, to_mistral, to_openai_chat, to_openai_responses
from redis_history.store._async.writing import AsyncWriting
from redis_history.values.pairs import open_calls
from tests.conformance.conftest import SOON
from tests.conformance.test_compaction import summary
from tests.conformance.test_runs import has_text, lose
from tests.support.sdk import torn, validate
from tests.support.servers import until

CONVERT = {
    "anthropic": to_anthropic,
    "gemini": to_gemini,
    "mistral": to_mistral,
    "openai_chat": to_openai_chat,
    "openai_responses": to_openai_responses,
}


#: Calls of others for the conversation "c" of the test below, and what they leave of its messages "u", "a", "b"
#: and of the reply "r" that the run is writing (None: the run ends).
OPERATIONS: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "append": (lambda store: store.append("c", user("new", id="n")), "uabrn"),
    "append_many": (lambda store: store.append_many("c", [user("new", id="n"), user("new", id="m")]), "uabrnm"),
    "stream": (lambda store: write_reply(store), "uabrn"),
    "update_message": (lambda store: store.update_message("c", user("changed", id="u")), "uabr"),
    "update_message on its reply": (lambda store: store.update_message("c", assistant("changed", id="r")), "uabr"),
    "pin": (lambda store: store.pin("c", "a"), "uabr"),
    "delete_messages": (lambda store: store.delete_messages("c", ["u", "a"]), "br"),
    "delete_messages of its reply": (lambda store: store.delete_messages("c", ["r"]), "uab"),
    "erase of messages": (lambda store: store.erase("c", ["u", "a"]), "br"),
    "clear": (lambda store: store.clear("c"), ""),
    "restore": (lambda store: store.restore("c", [user("new", id="n")]), "n"),
    "compact": (lambda store: store.compact("c", through="b", summary=summary(id="s")), "sr"),
    "expand": (lambda store: compact_and_expand(store), "uabr"),
    "fork": (lambda store: store.fork("c", "d"), "uabr"),
    "create_conversation": (lambda store: store.create_conversation(Conversation("c"), exist_ok=True), "uabr"),
    "update_conversation": (lambda store: store.update_conversation("c", title="t"), "uabr"),
    "merge_metadata": (lambda store: store.merge_metadata("c", {"k": 1}), "uabr"),
    "decide": (lambda store: ask_and_decide(store), "uabrq"),
    "reindex": (lambda store: store.reindex(), "uabr"),
    "get": (lambda store: store.get("c"), "uabr"),
    "log": (lambda store: store.log("c"), "uabr"),
    "snapshot": (lambda store: store.snapshot("c"), "uabr"),
    "list_conversations": (lambda store: store.list_conversations(preview=True), "uabr"),
    "search": (lambda store: store.search("c", "one"), "uabr"),
    "stop_run of another": (lambda store: store.stop_run("c", run_id="another"), "uabr"),
    "erase": (lambda store: store.erase("c"), ""),
    "erase_user": (lambda store: store.erase_user("u1"), None),
    "delete_conversation": (lambda store: store.delete_conversation("c"), None),
}


def test_every_method_that_writes_has_a_row() -> None:
    """A new one gets a row in OPERATIONS, and its effect on a run a place in docs/how-to/runs.md."""
    methods = {name for name in vars(AsyncWriting) if not name.startswith("_")}
    assert "clear" in methods
    assert not methods - {name.split()[0] for name in OPERATIONS}


async def write_reply(store: Any) -> None:
    async with store.stream("c", id="n") as reply:
        await reply.write("new")


async def compact_and_expand(store: Any) -> None:
    await store.compact("c", through="b", summary=summary(id="s"))
    await store.expand("c", "s")


async def ask_and_decide(store: Any) -> None:
    await store.append("c", assistant(tool_use("call", "pay", needs_approval=True), id="q"))
    await store.decide("c", "call", True)


@pytest.mark.proves("runs")
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.full
async def test_each_operation_during_a_run(stores: Any, name: str) -> None:
    """The table of docs/how-to/runs.md: only what removes the conversation ends the run."""
    operation, left = OPERATIONS[name]
    holder, other = stores(), stores()
    await holder.create_conversation(Conversation("c", user_id="u1"))
    await holder.append_many("c", [user("one", id="u"), assistant("two", id="a")])
    async with holder.run("c", agent_name="a") as run:
        await run.append(user("three", id="b"))
        reply = run.stream(id="r", interval=0.0)
        with contextlib.suppress(
            errors.MessageConflictError, errors.MessageNotFoundError, errors.RunLostError, errors.CapabilityError
        ):
            async with reply:
                await reply.write("four")
                await until(lambda: has_text(other, "four"), "the text")
                await operation(other)
        if left is None:
            assert await other.get_run("c") is None
            with pytest.raises(errors.RunLostError):
                await run.append(user("late"))
            assert await other.get("c") == []
            return
        assert (await other.get_run("c")).run_id == run.run_id
        assert await other.get_run("d") is None  # the run stays with the original
        await run.append(user("five", id="z"))
        assert [message.id for message in await other.get("c")] == [*left, "z"]
        with pytest.raises(errors.RunBusyError):
            async with other.run("c"):
                pass
    assert (await other.get_run("c")).status == "completed"


@pytest.mark.parametrize(
    ("ends", "added"),
    [("stopped", False), ("stopped", True), ("failed", False), ("interrupted", True)],
)
async def test_all_providers_take_a_conversation_whose_run_ended_early(stores: Any, ends: str, added: bool) -> None:
    await check_providers(stores, ends, added)


@pytest.mark.full
@pytest.mark.backends("memory", "redis")
async def test_all_providers_take_a_conversation_whose_run_died_in_its_reply(stores: Any) -> None:
    await check_providers(stores, "interrupted in its reply", True)


async def check_providers(stores: Any, ends: str, added: bool) -> None:
    """Each open call gets a result, also that of a reply. If a user has said something between a call and its result,
    `paired` moves the result, and leaves nothing out."""
    holder, other = stores(), stores()
    await holder.append("c", user("Where is my order?"))

    async def work() -> None:
        async with holder.run("c", agent_name="a") as run:
            calls = [tool_use("1", "find", {"id": 7}), *([tool_use("2", "ask", {})] if added else [])]
            await run.append(assistant(text("I look."), *calls))
            await run.append(tool(tool_result("1", "Lisbon")))
            if added:
                await other.append("c", user("And when?"))
            if ends == "interrupted":
                await run.append(assistant(text("One moment. "), tool_use("3", "call", {})))
                await lose(other, run)
                return
            async with run.stream(id="r") as reply:
                await reply.write("One moment. ")
                await reply.add(tool_use("3", "call", {}))
                if ends == "failed":
                    raise ZeroDivisionError
                if ends == "interrupted in its reply":
                    await until(lambda: has_calls(other), "the call")
                    await lose(other, run)
                    return
                await other.stop_run("c")
                assert await run.wait_stop(SOON)
                await reply.write("never")

    async def has_ended() -> bool:
        reply = await other.get_message("c", "r")
        return reply is None or reply.status != "streaming"

    with contextlib.suppress(errors.RunStopped, errors.RunLostError, ZeroDivisionError):
        await work()
    info = await other.get_run("c")
    assert info.status == ends.split()[0]
    async with other.run("c", wait=SOON):  # settles the calls of an interrupted one, and at its end those of its reply
        await until(has_ended, "the end of the reply")
    assert [call.id for _, calls in open_calls(await other.get("c")) for call in calls] == []
    await other.append("c", user("Go on."))
    losses: list[Any] = []
    messages = await other.get("c")
    if added:
        messages = paired(messages, on_loss=losses.append)
    for name, convert in CONVERT.items():
        converted = convert(messages, on_loss=losses.append)
        validate(name, converted)
        if name in ("anthropic", "openai_chat"):
            assert torn(name, converted) == []
        said = ["I look.", "Lisbon", "One moment.", "Go on.", "find", "call", *(["ask", "And when?"] if added else [])]
        assert [one for one in said if one not in str(converted)] == [], name
    assert {loss.reason for loss in losses} <= {"is_error of a tool result"}  # OpenAI has no such field


async def has_calls(store: Any) -> bool:
    return len((await store.get("c"))[-1].tool_uses) > 0

"""Imports into any store, and exports. Compacted conversations keep their summaries and originals."""

import asyncio
import io
import itertools
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import (
    Conversation,
    HistoryStore,
    Message,
    Participant,
    TextPart,
    UnknownPart,
    assistant,
    system,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import InvalidInputError, MessageNotFoundError
from redis_history.integrations.importers import (
    Turn,
    async_export_messages,
    async_import_messages,
    build,
    export_messages,
    import_messages,
    read_transcripts,
)
from redis_history.store.operations import ReadPage
from tests.conformance.test_stream import until_text
from tests.property.strategies import messages as any_messages
from tests.support.faces import act_after

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


async def import_into(store: Any, path: Path, **options: Any) -> Any:
    target = getattr(store, "_target", None)  # the synchronous store
    return import_messages(path, target, **options) if target else await async_import_messages(path, store, **options)


async def exported(store: Any, path: Any, **options: Any) -> Any:
    target = getattr(store, "_target", None)
    if target:
        return await asyncio.to_thread(export_messages, target, path, **options)
    return await async_export_messages(store, path, **options)


def bare(messages: Any) -> Any:
    return [msgspec.structs.replace(message, sequence=None) for message in messages]


@pytest.mark.proves("imports")
async def test_importing_twice_stores_once(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": f"c{n}", "messages": CHAT * 3, "title": f"T{n}"}) for n in (1, 2)]
    path.write_text("\n".join([lines[0], "{broken", lines[1]]))
    problems: list[Any] = []
    progress: list[Any] = []
    done = await import_into(store, path, batch=4, on_error=problems.append, on_progress=progress.append)
    assert (done.conversations, done.messages, done.new, done.duplicates, done.problems) == (2, 12, 12, 0, 1)
    assert [(problem.path, problem.line) for problem in problems] == [(str(path), 2)]
    assert [one.messages for one in progress] == [4, 6, 6, 10, 12, 12]
    path.write_text(json.dumps({"id": "c1", "messages": [*CHAT * 3, {"role": "user", "content": "Thanks"}]}))
    done = await import_into(store, path)
    assert (done.new, done.duplicates) == (1, 6)
    texts = [message.text for message in await store.get("openai_chat:a:c1")]
    assert texts == [*["2+2?", "4"] * 3, "Thanks"]
    record = await store.get_conversation("openai_chat:a:c2")
    assert (record.title, record.message_count) == ("T2", 6)


async def test_a_message_with_other_content_in_the_store_is_reported(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": CHAT * 2}))
    (transcript,) = read_transcripts(path)
    first, second, *_ = transcript.messages
    await store.append_many(transcript.conversation_id, [first, user("mine", id=second.id), transcript.messages[2]])
    problems: list[Any] = []
    done = await import_into(store, path, on_error=problems.append)
    assert (done.messages, done.new, done.problems) == (4, 1, 1)
    assert second.id in problems[0].reason


def said(*texts: str, **fields: Any) -> dict[str, Any]:
    roles = itertools.cycle(("user", "assistant"))
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)], **fields}


async def texts_in(store: Any) -> list[list[str]]:
    return sorted([[one.text for one in await store.get(id_)] async for id_ in ids_in(store)])


async def ids_in(store: Any) -> AsyncIterator[str]:
    for one in await store.list_conversations():
        yield one.conversation_id


@pytest.mark.parametrize("form", ["with an owner", "with ids", "lists", "rows"])
async def test_files_of_the_same_name_are_different_conversations(store: Any, tmp_path: Path, form: str) -> None:
    for name, texts in (("ann", ("Hi", "Hello Ann", "Ill?")), ("bob", ("Hi", "Hello Bob", "Thanks", "Bye"))):
        chat: Any = said(*texts, user_id=name) if form == "with an owner" else said(name + texts[0], *texts[1:])
        for number, message in enumerate(chat["messages"]):
            message |= {"id": f"{name}{number}"} if form == "with ids" else {}
        chat = chat if form.startswith("with") else chat["messages"]
        path = tmp_path / name / "chat.jsonl"
        path.parent.mkdir()
        path.write_text("\n".join(map(json.dumps, chat)) if form == "rows" else json.dumps(chat))
    for _ in range(2):
        for name in ("ann", "bob"):
            assert (await import_into(store, tmp_path / name / "chat.jsonl")).problems == 0
    assert [texts[1:] for texts in await texts_in(store)] == [["Hello Ann", "Ill?"], ["Hello Bob", "Thanks", "Bye"]]


async def test_a_conversation_without_an_id_grows(store: Any, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([{"role": "system", "content": "It is Monday."}, *said("Hi", "Hello")["messages"]]))
    await import_into(store, path)
    grown = [{"role": "system", "content": "It is Tuesday."}, *said("Hi", "Hello", "Bye")["messages"]]
    path.write_text(json.dumps(grown))
    done = await import_into(store, path)
    assert (done.new, done.problems) == (1, 1)
    assert await texts_in(store) == [["It is Monday.", "Hi", "Hello", "Bye"]]


@pytest.mark.parametrize("owners", [("ann", "bob"), (7, "7"), (None, None), (None, "bob")])
async def test_a_conversation_does_not_get_messages_of_another_one_with_its_id(
    store: Any, tmp_path: Path, owners: tuple[Any, Any]
) -> None:
    first, second = (tmp_path / name / "chats.jsonl" for name in ("one", "two"))
    texts = (("Hi", "Hello Ann", "Ill?"), ("Hi", "Hello Bob", "Thanks", "Bye"))
    for path, owner, chat in zip((first, second), owners, texts, strict=True):
        path.parent.mkdir()
        path.write_text(json.dumps(said(*chat, id=1, user_id=owner)))
    problems: list[Any] = []
    await import_into(store, first, on_error=problems.append)
    assert problems == []
    done = await import_into(store, second, on_error=problems.append)
    assert (done.new, done.messages) == (0, 4)
    assert "are left out" in problems[0].reason
    assert await texts_in(store) == [["Hi", "Hello Ann", "Ill?"]]


@pytest.mark.parametrize("kind", ["transcripts", "export"])
async def test_other_sources_do_not_mix_owners_either(stores: Any, tmp_path: Path, kind: str) -> None:
    store = stores()
    name = "notes:monday"
    await store.create_conversation(Conversation(name, user_id="bob"))
    await store.append(name, user("Call Bob."))
    source: Any = [build([Turn(user("Ill?"))], format="notes", key="monday", user_id="ann", on_bad_line=print)]
    if kind == "export":
        source = tmp_path / "out.jsonl"
        await exported(store, source)
        await store.delete_conversation(name)
        await store.create_conversation(Conversation(name, user_id="ann"))
        await store.append(name, user("Ill?"))
    before = await store.get(name)
    done = await import_into(store, source)
    assert (done.new, done.problems) == (0, 1)
    assert await store.get(name) == before


@pytest.mark.proves("imports")
@pytest.mark.smoke
async def test_an_export_comes_back_equal(stores: Any, tmp_path: Path) -> None:
    store = stores()
    await store.create_conversation(Conversation("c1", user_id="ann", title="T", metadata={"k": [1, None]}))
    messages = [
        user("hi", timestamp=datetime(2024, 1, 2, 3, 4, 5, 678901, UTC), metadata={"raw": b"\x00\xff", "&": {"&x": 1}}),
        assistant(tool_use("t", "f", {"at": "x"}), timestamp=datetime(2024, 1, 2, tzinfo=UTC)),
        tool(tool_result("t", [{"type": "text", "text": "✓"}]), timestamp=datetime(2024, 1, 3, tzinfo=UTC)),
    ]
    await store.append_many("c1", messages)
    await store.append("c2", user("alone"))
    path = tmp_path / "out.jsonl"
    done = await exported(store, path)
    assert (done.conversations, done.messages) == (2, 4)
    before = {name: await store.get(name) for name in ("c1", "c2")}
    for name in before:
        await store.delete_conversation(name)
    await import_into(store, path)
    for name, expected in before.items():
        assert bare(await store.get(name)) == bare(expected)
    record = await store.get_conversation("c1")
    assert (record.user_id, record.title, record.metadata) == ("ann", "T", {"k": [1, None]})


async def test_fields_of_a_newer_version_are_kept_by_every_change(stores: Any, tmp_path: Path) -> None:
    store = stores()
    newer = Message(
        role="user",
        id="new",
        parts=(TextPart("x", extra={"language": "en"}), UnknownPart({"type": "poll", "answers": [1, 2]})),
        participant=Participant("user", "ann", extra={"team": "red"}),
        extra={"priority": 5, "nested": {"a": [None]}},
    )

    def kept(message: Any) -> bool:
        return (message.parts, message.participant, message.extra) == (newer.parts, newer.participant, newer.extra)

    await store.append_many("c", [newer, user("y", id="y"), user("z", id="z")])
    [found, *_] = await store.get("c")
    edited = await store.update_message("c", msgspec.structs.replace(found, metadata={"edited": True}))
    assert kept(edited.message)
    done = await store.compact("c", through="y", summary="Both.")
    assert [kept(one) for one in await store.get("c", include_archived=True)].count(True) == 1
    fork = await store.fork("c")
    await store.expand("c", done.summary.id)
    await exported(store, tmp_path / "out.jsonl")
    await store.delete_conversation("c")
    await import_into(store, tmp_path / "out.jsonl")
    await store.expand(fork.conversation_id, done.summary.id)
    for name in ("c", fork.conversation_id):
        [back, *_] = await store.get(name)
        assert (kept(back), back.metadata) == (True, {"edited": True})


@given(conversation=st.lists(any_messages(), min_size=1, max_size=3, unique_by=lambda message: message.id))
def test_any_message_comes_back_from_a_file(conversation: list[Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("out") / "out.jsonl"
    with HistoryStore("memory://") as store, HistoryStore("memory://") as other:
        store.append_many("c", conversation)
        export_messages(store, path)
        import_messages(path, other)
        assert bare(other.get("c")) == bare(store.get("c"))


@pytest.mark.parametrize("key", ["k", "&k"])
def test_the_deepest_messages_come_back_from_a_file(tmp_path: Path, key: str) -> None:
    value: Any = b"x"
    for _ in range(99):
        value = {key: value}
    with HistoryStore("memory://") as store, HistoryStore("memory://", namespace="other") as other:
        store.append_many("c", [user("x", metadata={key: value}), assistant(tool_use("c", "f", {key: value}))])
        export_messages(store, tmp_path / "a.jsonl")
        import_messages(tmp_path / "a.jsonl", other)
        assert other.get("c") == store.get("c")


async def test_some_conversations_are_exported(store: Any, tmp_path: Path) -> None:
    await store.append("c1", user("a"))
    await store.append("c2", user("b"))
    stream = io.BytesIO()
    done = await exported(store, stream, conversation_ids=["c2"])
    assert (done.conversations, done.messages) == (1, 1)
    assert stream.getvalue().count(b"\n") == 2
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    with pytest.raises(InvalidInputError, match="nobody"):
        await exported(store, path, conversation_ids=["c1", "nobody"])
    assert path.read_text() == "before", "a failed export leaves the file"
    assert [name for name in os.listdir(tmp_path) if "out" in name] == ["out.jsonl"]  # noqa: PTH208


# Compacted conversations


def at(second: int) -> datetime:
    return datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=second)


@pytest.fixture
def compacted(stores: Any) -> Callable[[], Awaitable[Any]]:
    """Makes a store with a conversation of two summaries, the second with the first in it; system messages, a call with
    its result, and a late message with an earlier time."""

    async def compacted() -> Any:
        store = stores()
        messages = [system("Be kind.", timestamp=at(0)), *(user(f"{n}", timestamp=at(n)) for n in range(1, 7))]
        messages += [
            assistant(tool_use("t", "f", {}), timestamp=at(7)),
            tool(tool_result("t", "ok"), timestamp=at(8)),
            system("Be brief.", timestamp=at(9)),
            *(user(f"{n}", timestamp=at(n)) for n in range(10, 20)),
        ]
        await store.append_many("c", messages)
        every = await store.get("c")
        first = await store.compact("c", through=every[4], summary="of the first four", seen=every[1:5])
        second = [first.summary, *(message for message in every[5:13] if message.role != "system")]
        await store.compact("c", through=every[12], summary="of the first twelve", seen=second)
        await store.append("c", user("remembered late", timestamp=at(3)))
        await store.append("c", user("goes on", timestamp=at(30)))
        return store

    return compacted


async def state_of(store: Any) -> tuple[Any, Any]:
    return bare(await store.get("c")), bare(await store.get("c", include_archived=True))


async def expand_all(store: Any) -> list[Any]:
    """The states of the conversation while every summary is expanded."""
    states = []
    while summary := next((message for message in await store.get("c") if message.is_summary), None):
        await store.expand("c", summary.id)
        states.append(await state_of(store))
    return states


@pytest.mark.proves("imports")
@pytest.mark.parametrize("batch", [3, 200])
async def test_an_archive_comes_back_as_an_archive(compacted: Any, tmp_path: Path, batch: int) -> None:
    store = await compacted()
    path = tmp_path / "c.jsonl"
    done = await exported(store, path, include_archived=True)
    expected, record = await state_of(store), await store.get_conversation("c")
    assert done.messages == len(expected[1])
    again = await import_into(store, path)
    assert (again.new, again.duplicates, again.problems) == (0, again.messages, 0)
    assert (await store.get_conversation("c")).revision == record.revision, "nothing was changed"
    expansions = await expand_all(store)
    assert len(expansions) == 2
    await store.delete_conversation("c")
    counts = await import_into(store, path, batch=batch)
    assert (counts.messages, counts.new, counts.duplicates, counts.problems) == (done.messages, done.messages, 0, 0)
    assert await state_of(store) == expected
    assert await expand_all(store) == expansions


@pytest.mark.proves("imports")
async def test_a_whole_file_adds_what_a_damaged_copy_of_it_lacked(stores: Any, tmp_path: Path) -> None:
    store = stores()
    await store.append_many("c", [user(text, id=text) for text in "abcd"])
    path = tmp_path / "c.jsonl"
    await exported(store, path)
    before, lines = await store.get("c"), path.read_text().splitlines()
    await store.delete_conversation("c")
    path.write_text("\n".join([*lines[:2], "{broken", lines[3]]))
    assert (await import_into(store, path)).problems == 1
    path.write_text("\n".join(lines))
    counts = await import_into(store, path)
    assert (counts.new, counts.duplicates, counts.problems) == (2, 2, 0)
    assert bare(await store.get("c")) == bare(before)
    assert (await import_into(store, path)).new == 0


async def test_an_existing_conversation_gets_no_archived_messages(compacted: Any, tmp_path: Path) -> None:
    store = await compacted()
    path = tmp_path / "c.jsonl"
    await exported(store, path)
    live, _ = await state_of(store)
    await store.delete_conversation("c")
    await store.append("c", user("mine"))
    problems: list[Any] = []
    counts = await import_into(store, path, on_error=problems.append)
    assert (counts.new, counts.problems) == (len(live), 1)
    assert "archived" in problems[0].reason
    assert {message.id for message in live} < {message.id for message in await store.get("c")}
    assert (await import_into(store, path)).new == 0


@pytest.mark.proves("backup")
async def test_a_backup_is_restored_as_it_was(stores: Any, compacted: Any, tmp_path: Path) -> None:
    """Lists, records with times and revisions, origins of forks, archives and messages, field by field."""
    store = await compacted()
    await store.create_conversation(Conversation("empty", user_id=0, auditing_id="", metadata={"k": b"x"}))
    await store.append_many("calls", [user("go"), assistant(tool_use("t", "f"))])
    await store.fork("c", "fork")
    await store.update_message("fork", user("edited", id=(await store.get("fork"))[-1].id))
    await store.update_conversation("calls", title="the last change")
    await store.delete_messages("fork", [(await store.get("fork"))[1].id])
    dated = [user(one, id=one, timestamp=f"20{one}-01-01") for one in ("20", "21", "22", "23")]
    await store.append_many("dated", dated)
    await store.delete_messages("dated", ["20", "23"])
    await store.append_many("emptied", dated)
    await store.delete_messages("emptied", ["20", "21", "22", "23"])
    listed, names = await store.list_conversations(), ("c", "empty", "calls", "fork", "dated", "emptied")
    messages = {name: (await store.get(name), await store.get(name, include_archived=True)) for name in names}
    found = [hit.message.id for hit in await store.search("c", "first twelve")]
    path = tmp_path / "backup.jsonl.gz"
    await exported(store, path)
    for name in names:
        await store.delete_conversation(name)
    counts = await import_into(store, path)
    assert (counts.conversations, counts.problems) == (6, 0)
    assert await store.list_conversations() == listed
    for name in names:
        assert (await store.get(name), await store.get(name, include_archived=True)) == messages[name]
    assert [one.conversation_id for one in await store.list_conversations(forked_from="c")] == ["fork"]
    assert [hit.message.id for hit in await store.search("c", "first twelve")] == found
    before = (await store.get_conversation("c")).revision
    assert (await store.append("c", user("goes on again"))).revision == before + 1
    assert len(await expand_all(store)) == 2
    for name in ("dated", "emptied"):
        assert (await store.append(name, user("goes on"))).message.sequence == 5


@pytest.mark.backends("memory")
@pytest.mark.parametrize(
    "change",
    [
        {"sequence": -1},
        {"sequence": 2**32},
        {"ttl": -1},
        {"archives": [{"number": 9}]},
        {"archives": [{"number": 1}, {"number": 1}]},
        {"conversation": {"last_message_at": "9999-01-01"}},
    ],
)
async def test_a_record_that_no_conversation_has_is_reported(store: Any, change: Any, tmp_path: Path) -> None:
    await store.append("c", user("x", id="m"))
    path = tmp_path / "c.jsonl"
    await exported(store, path)
    first, *rest = path.read_text().splitlines()
    record = json.loads(first)
    record |= change | {"conversation": record["conversation"] | change.get("conversation", {})}
    path.write_text("\n".join([json.dumps(record), *rest]))
    await store.delete_conversation("c")
    assert (await import_into(store, path)).problems == 1
    assert [one.id for one in await store.get("c")] == ["m"]


@pytest.mark.proves("backup")
async def test_a_backup_restores_empty_archives(compacted: Any, tmp_path: Path) -> None:
    store = await compacted()
    first, second = [one.id for one in await store.get("c", include_archived=True) if one.is_summary]
    archived = await store.get("c", include_archived=True)
    live = {one.id for one in await store.get("c")}
    await store.delete_messages("c", [one.id for one in archived if one.id not in live and not one.is_summary][:4])
    path = tmp_path / "c.jsonl"
    await exported(store, path)
    expected = await state_of(store)
    await store.delete_conversation("c")
    await import_into(store, path)
    assert await state_of(store) == expected
    await store.expand("c", second)
    assert (await store.expand("c", first)).count == 0


async def test_an_export_does_not_name_a_former_summary_that_was_deleted(compacted: Any, tmp_path: Path) -> None:
    store = await compacted()
    former = next(one.id for one in await store.get("c", include_archived=True) if one.is_summary)
    await store.delete_messages("c", [former])
    await exported(store, tmp_path / "c.jsonl")
    assert former not in (tmp_path / "c.jsonl").read_text()


@pytest.mark.proves("backup")
@pytest.mark.parametrize("again", [False, True])
async def test_a_summary_that_is_deleted_during_an_export_is_none(compacted: Any, tmp_path: Path, again: bool) -> None:
    store = await compacted()
    [name] = [one.id for one in await store.get("c") if one.is_summary]

    async def delete() -> None:
        await store.delete_messages("c", [name])
        if again:
            await store.append("c", user("a note", id=name))

    act_after(store, ReadPage, delete)
    await exported(store, tmp_path / "c.jsonl", conversation_ids=["c"])
    expected = await state_of(store)
    await store.delete_conversation("c")
    await import_into(store, tmp_path / "c.jsonl")
    assert await state_of(store) == expected
    with pytest.raises(MessageNotFoundError):
        await store.expand("c", name)


@pytest.mark.proves("backup")
async def test_an_export_has_the_sequence_of_a_message_that_came_and_went_meanwhile(store: Any, tmp_path: Path) -> None:
    await store.append("c", user("stays"))

    async def act() -> None:
        await store.append("c", user("goes", id="gone"))
        await store.delete_messages("c", ["gone"])

    act_after(store, ReadPage, act)
    await exported(store, tmp_path / "c.jsonl")
    await store.delete_conversation("c")
    await import_into(store, tmp_path / "c.jsonl")
    assert (await store.append("c", user("new"))).message.sequence == 3


async def test_an_open_reply_is_exported_as_it_is(store: Any, tmp_path: Path) -> None:
    await store.append("c", user("hi"))
    path = tmp_path / "c.jsonl"
    async with store.stream("c", id="r", interval=0) as reply:
        await reply.write("half")
        await until_text(store, "half")
        await exported(store, path)
    [transcript] = read_transcripts(path)
    assert [(one.text, one.status) for one in transcript.messages] == [("hi", "complete"), ("half", "streaming")]
    await store.delete_conversation("c")
    await import_into(store, path)
    assert [(one.text, one.status) for one in await store.get("c")] == [("hi", "complete"), ("half", "interrupted")]


class Stop(Exception):
    pass


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.backends("memory")
async def test_an_interrupted_export_is_continued(store: Any, tmp_path: Path, suffix: str) -> None:
    names = [f"c{number}" for number in range(12)]
    for name in names:
        await store.append_many(name, [user(random.Random(name).randbytes(60_000).hex(), id=f"{n}") for n in range(5)])
    path = tmp_path / f"out{suffix}"

    def stop(done: Any) -> None:
        if done.conversations == 5:
            raise Stop

    with pytest.raises(Stop):
        await exported(store, path, resume=True, on_progress=stop)
    part = path.with_name(path.name + ".partial")
    with part.open("r+b") as file:
        file.truncate(part.stat().st_size - 1000)
    assert not path.exists()
    done = await exported(store, path, resume=True)
    assert 0 < done.conversations < 12
    assert not part.exists()
    transcripts = list(read_transcripts(path))
    assert sorted(one.conversation_id for one in transcripts) == sorted(names)
    assert all(len(one.messages) == 5 for one in transcripts)
    with pytest.raises(InvalidInputError, match="resume"):
        await exported(store, io.BytesIO(), resume=True)


@pytest.mark.proves("local-users")
@pytest.mark.parametrize("kind", ["link", "link to nothing", "second name", "pipe", "folder", "another user's"])
@pytest.mark.backends("memory")
async def test_an_export_continues_only_a_file_of_its_user(
    store: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user has guessed the name of the file."""
    await store.append("c", user("private"))
    precious, part = tmp_path / "precious", tmp_path / "out.jsonl.partial"
    if kind != "link to nothing":
        precious.write_bytes(b"precious")
    match kind:
        case "second name":
            part.hardlink_to(precious)
        case "pipe":
            os.mkfifo(part)
        case "folder":
            part.mkdir()
        case "another user's":  # a test can give nothing to another user, and so becomes one itself
            part.write_bytes(b"")
            monkeypatch.setattr("os.geteuid", lambda: part.stat().st_uid + 1)
        case _:
            part.symlink_to(precious)
    with pytest.raises(InvalidInputError, match=r"'.*out\.jsonl\.partial' is a link"):
        await exported(store, tmp_path / "out.jsonl", resume=True)
    assert precious.exists() == (kind != "link to nothing")
    assert not precious.exists() or precious.read_bytes() == b"precious"
    assert not (tmp_path / "out.jsonl").exists()


async def test_without_the_archive_a_summary_is_a_message(compacted: Any, tmp_path: Path) -> None:
    store = await compacted()
    path = tmp_path / "c.jsonl"
    await exported(store, path, include_archived=False)
    live, _ = await state_of(store)
    await store.delete_conversation("c")
    await import_into(store, path)
    assert await state_of(store) == (live, live)

"""A table: each kind of item that providers send (tests/support/items.py), and each operation."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from redis_history import Compressor, History, HistoryStore, Message, assemble_prompt, extractive_summarizer
from redis_history.agents.history.masking import tool_result_masking
from redis_history.errors import RedisHistoryError
from redis_history.formats import Loss, paired
from redis_history.integrations.importers import export_messages, import_messages
from redis_history.values import AttachmentPart, Part, TextPart, ToolResultPart, ToolUsePart, UnknownPart, large
from redis_history.values.sizes import count_characters, message_tokens
from tests.property.test_pairs_of_providers import torn
from tests.support.calls import alone, opened_and_answered, refused
from tests.support.items import CASES, DATA, SAFE, SECRET, SIGNATURE, Case, sdk_objects
from tests.support.marks import some
from tests.support.sdk import torn as not_in_order
from tests.support.sdk import validate
from tests.support.servers import RealServer
from tests.unit.format_cases import FORMAT

#: By default only every third item is tested. The others differ from these in their names and fields.
every_item = pytest.mark.parametrize("case", some(CASES, each=3))
pytestmark = [pytest.mark.proves("pairs", "bounds", "round-trip"), every_item]

Open = Callable[..., HistoryStore]


def ignore(loss: Loss) -> None:
    pass


def read(case: Case) -> list[Message]:
    return FORMAT[case.form].from_(case.items)


def written(case: Case, messages: Sequence[Message]) -> list[Any]:
    return FORMAT[case.form].to(messages, shape="original", on_loss=ignore)


def requested(form: str, messages: Sequence[Message]) -> list[Any]:
    return FORMAT[form].to(messages, shape="request", on_loss=ignore)


def calls_of(case: Case, items: Sequence[Any]) -> list[Any]:
    return [sorted(one) for one in opened_and_answered(case.form, items)]


def check_requests(case: Case, messages: Sequence[Message]) -> None:
    """Check that the types of each provider accept the messages, pairs are whole, and no base64 is sent as text."""
    for form in FORMAT:
        items = requested(form, messages)
        validate(form, items)
        text = json.dumps(items, default=str)
        assert '"pair"' not in text, form
        own = form == case.form
        if items and (own or form != "gemini"):  # only Gemini's own calls are signed
            assert refused(form, items) == [], form
        if form in ("anthropic", "openai_chat"):
            assert not_in_order(form, items) == [], form
        if form == "anthropic":
            assert '"text": ""' not in text
            assert '"text": " "' not in text
        assert own or SIGNATURE not in text, form
        assert own or SAFE not in text, form


def check_totals(store: HistoryStore, name: str = "c") -> None:
    record, messages = store.get_conversation(name), store.get(name)
    assert record is not None
    assert record.message_count == len(messages)
    assert record.characters == sum(map(count_characters, messages))
    assert record.estimated_tokens == sum(map(message_tokens, messages))


@pytest.fixture
def memory() -> Iterator[Open]:
    """Open stores in memory, and close them all after the test."""
    yield from closing(lambda **options: HistoryStore("memory://", **options))


def closing(open_store: Open) -> Iterator[Open]:
    stores: list[HistoryStore] = []

    def make(**options: Any) -> HistoryStore:
        stores.append(open_store(**options))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.full)])
def opened(request: pytest.FixtureRequest, server: RealServer, namespace: str) -> Iterator[Open]:
    """Open stores in memory or on Redis, and close them all after the test."""
    where = {"url": "memory://"} if request.param == "memory" else {"url": server.url, "namespace": namespace}
    yield from closing(lambda **options: HistoryStore(**{"search": "off", **where, **options}))


def holding(opened: Open, messages: Sequence[Message], **options: Any) -> HistoryStore:
    store = opened(**options)
    store.delete_conversation("c")
    store.append_many("c", messages)
    return store


def test_append_and_get(case: Case, opened: Open) -> None:
    store = holding(opened, read(case))
    found = store.get("c")
    assert written(case, found) == case.items
    assert calls_of(case, requested(case.form, found)) == calls_of(case, case.items)
    check_requests(case, found)
    check_requests(case, paired(found, on_loss=ignore))
    check_totals(store)


def test_sizes(case: Case, memory: Open) -> None:
    store = holding(memory, read(case))
    record = store.get_conversation("c")
    assert record is not None
    dumped = json.dumps(case.items)
    has_file = DATA in dumped or SAFE in dumped
    assert has_file == (record.characters > 4_000), "an image counts as a constant"
    assert record.characters < 12_000, "and base64 not as text"
    longer = FORMAT[case.form].from_(json.loads(dumped.replace(SECRET, SECRET * 1_000)))
    more = sum(map(count_characters, longer)) - record.characters
    texts = dumped.count(SECRET) * len(SECRET) * 999
    assert texts <= more <= texts + 100, "all text counts"
    store.delete_messages("c", [store.get("c")[-1].id])
    check_totals(store)


@pytest.mark.full
def test_prompts(case: Case) -> None:
    budgets = (None, 1, 8, 20, 40, 80, 200, 1_000, 2_500)
    with HistoryStore("memory://") as store:
        store.append_many("c", read(case))
        for budget in budgets:
            for most in range(1, 9):
                options = {"token_budget": budget, "max_turns_to_load": most}
                check_requests(case, assemble_prompt(store, "c", "bot", "Bot", options).messages)
        whole = requested(case.form, assemble_prompt(store, "c", "bot", "Bot").messages)
    assert calls_of(case, whole) == calls_of(case, case.items)


@pytest.mark.full
def test_caps(case: Case, opened: Open) -> None:
    said = read(case)
    for most in range(1, len(said) + 1):
        store = holding(opened, said, max_messages=most)
        assert torn(case.form, case.items, written(case, store.get("c"))) == []
        check_totals(store)
        store = holding(opened, said[:1], max_messages=max(most, 4))
        for message in said[1:]:
            store.append("c", message)
            assert alone(case.form, written(case, store.get("c"))) == []


def test_compaction_and_expansion(case: Case, opened: Open) -> None:
    said = read(case)
    for at in range(len(said)):
        store = holding(opened, said)
        with suppress(RedisHistoryError):  # it would tear a pair
            store.compact("c", through=store.get("c")[at], summary="sum")
        [*summaries] = [one for one in store.get("c") if one.is_summary]
        rest = [one for one in store.get("c") if not one.is_summary]
        assert torn(case.form, case.items, written(case, rest)) == []
        check_requests(case, assemble_prompt(store, "c", "bot", "Bot").messages)
        for summary in summaries:
            store.expand("c", summary.id)
        assert written(case, store.get("c")) == case.items
        check_totals(store)


@pytest.mark.full
def test_compressor(case: Case) -> None:
    for most in (10, 40, 1_100):
        with HistoryStore("memory://") as store:
            store.append_many("c", read(case))
            Compressor(store, extractive_summarizer(), max_tokens=most, keep_recent=1).run_once()
            found = store.get("c")
            check_totals(store)
            check_requests(case, paired(found, on_loss=ignore))
            assert torn(case.form, case.items, written(case, [one for one in found if not one.is_summary])) == []
            for summary in [one for one in found if one.is_summary]:
                assert not any(bytes_[50:150] in summary.text for bytes_ in (DATA, SAFE, SIGNATURE))
                store.expand("c", summary.id)
            assert written(case, store.get("c")) == case.items


@pytest.mark.full
def test_forks(case: Case) -> None:
    with HistoryStore("memory://") as store:
        store.append_many("c", read(case))
        for message in store.get("c"):
            fork = store.fork("c", through=message.id)
            check_requests(case, paired(store.get(fork.conversation_id), on_loss=ignore))
            check_totals(store, fork.conversation_id)


@pytest.mark.full
def test_selectors_and_limits(case: Case) -> None:
    said = read(case)
    history = History(said)
    found = []
    for count in range(1, len(said) + 1):
        limited = History(max_length=count)
        limited.restore(said)
        found += [history.recent(count), limited.entries, history.range(count, count // 2)]
        assert DATA not in history.recent_text(count)
    for tokens in (1, 3, 10, 20, 30, 60, 100, 1_000, 2_000, 5_000):
        limited = History(max_tokens=tokens)
        limited.restore(said)
        found += [history.by_tokens(tokens), limited.entries]
    for messages in found:
        assert torn(case.form, case.items, written(case, messages)) == []
        check_requests(case, paired(messages, on_loss=ignore))


def test_limits_of_a_session(case: Case) -> None:
    sessions = pytest.importorskip("redis_history.integrations.openai_agents")

    async def check(store: HistoryStore) -> None:
        session = sessions.AgentsSession("c", store, on_loss=ignore)
        if case.form == "openai_responses":
            await session.add_items(case.items)
            assert await session.get_items() == case.items
        else:
            store.append_many("c", read(case))
        every = await session.get_items()
        for limit in range(1, len(every) + 1):
            found = await session.get_items(limit)
            assert len(found) <= limit
            assert torn("openai_responses", every, found) == []
            assert alone("openai_responses", found) == []

    with HistoryStore("memory://") as store:
        asyncio.run(check(store))


def test_masks(case: Case) -> None:
    said = read(case)
    history = History(said).use(tool_result_masking(keep_recent_results=0))
    shown = history.get_entries()
    check_requests(case, paired(shown, on_loss=ignore))
    check_requests(case, shown)
    if not has_opaque(said):
        assert_gone(case, shown, DATA, SAFE, SECRET)


def has_opaque(messages: Sequence[Message]) -> bool:
    return any(type(part) is UnknownPart for message in messages for part in message.parts)


def assert_gone(case: Case, messages: Sequence[Message], *secrets: str) -> None:
    outputs = [json.dumps(written(case, messages), default=str)]
    outputs += [json.dumps(requested(form, messages), default=str) for form in FORMAT]
    for output in outputs:
        assert not any(secret in output for secret in secrets)


def check_edited(case: Case, opened: Open, edit: Callable[[Part], Part]) -> HistoryStore:
    store = holding(opened, read(case))
    for message in store.get("c"):
        store.update_message("c", replace(message, parts=tuple(map(edit, message.parts))))
    check_requests(case, paired(store.get("c"), on_loss=ignore))
    check_requests(case, assemble_prompt(store, "c", "bot", "Bot").messages)
    check_totals(store)
    return store


def test_redaction_of_whole_parts(case: Case, memory: Open) -> None:
    def edit(part: Part) -> Part:
        match part:
            case TextPart():
                return replace(part, text="[redacted]")
            case ToolResultPart():
                return replace(part, content="[redacted]")
            case ToolUsePart():
                return replace(part, input={"redacted": True})
            case AttachmentPart():
                return replace(part, reference=None, name="[redacted]")
        return part

    store = check_edited(case, memory, edit)
    if not has_opaque(store.get("c")):
        assert_gone(case, store.get("c"), DATA, SAFE, SECRET)
        stored = msgspec.json.encode(store.get("c")).decode()
        assert not any(secret in stored for secret in (DATA, SAFE, SECRET)), "no note keeps it"


def test_redaction_inside_parts(case: Case, memory: Open) -> None:
    def without(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(SECRET, "[redacted]").replace(DATA, "aaaa").replace(SAFE, "aaaa")
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items()}
        return [without(item) for item in value] if isinstance(value, list) else value

    def edit(part: Part) -> Part:
        names = {"text", "content", "input", "reference", "data"}.intersection(part.__struct_fields__)
        return replace(part, **{name: without(getattr(part, name)) for name in names})

    store = check_edited(case, memory, edit)
    found = store.get("c")
    assert_gone(case, found, DATA, SAFE, SECRET)
    stored = msgspec.json.encode(found).decode()
    assert not any(secret in stored for secret in (DATA, SAFE, SECRET)), "no note keeps it"
    assert calls_of(case, requested(case.form, found)) == calls_of(case, case.items)


def test_objects_of_the_sdk(case: Case, memory: Open) -> None:
    store = holding(memory, FORMAT[case.form].from_(sdk_objects(case)))
    found = store.get("c")
    check_requests(case, paired(found, on_loss=ignore))
    check_totals(store)
    plain = sum(map(count_characters, read(case)))
    assert abs(sum(map(count_characters, found)) - plain) < 600
    assert FORMAT[case.form].from_(requested(case.form, found)) != []


def test_export_and_import(case: Case, memory: Open, tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    with HistoryStore("memory://") as source:
        source.append_many("c", read(case))
        source.compact("c", through=source.get("c")[1], summary="sum")
        export_messages(source, path)
        before = source.get("c")
    store = memory()
    import_messages(path, store)
    assert [(one.id, one.parts, one.provider_meta) for one in store.get("c")] == [
        (one.id, one.parts, one.provider_meta) for one in before
    ]
    check_totals(store)
    for summary in [one for one in store.get("c") if one.is_summary]:
        store.expand("c", summary.id)
    assert written(case, store.get("c")) == case.items


def test_search(case: Case, opened: Open) -> None:
    store = holding(opened, read(case), search="auto")
    for question in ("code safe 4711", "do it", "go on"):
        for cap in (1, 30, 2_000):
            for hit in store.search("c", question, token_cap=cap, context=1):
                shown = (hit.excerpt or "") + "".join(one.text for one in hit.highlights)
                assert not any(bytes_[50:100] in shown for bytes_ in (DATA, SAFE, SIGNATURE))


@pytest.mark.usefixtures("small_caps")
def test_above_the_cap_of_a_message(case: Case) -> None:
    for replaced in ((SECRET,), (DATA, SAFE)):
        dumped = json.dumps(case.items)
        if not any(one in dumped for one in replaced):
            continue  # the case lacks such content
        for one in replaced:
            dumped = dumped.replace(one, one * (5_000_000 // len(one)))
        lacks = []
        with HistoryStore("memory://") as store:
            for message in FORMAT[case.form].from_(json.loads(dumped)):
                fitted = large.fitted(message)
                lacks += fitted.lacks
                store.append_many("c", fitted.messages)
            found = store.get("c")
            check_totals(store)
            check_requests(case, assemble_prompt(store, "c", "bot", "Bot").messages)
        assert lacks
        check_requests(case, paired(found, on_loss=ignore))
        assert calls_of(case, requested(case.form, paired(found, on_loss=ignore))) == calls_of(case, case.items)

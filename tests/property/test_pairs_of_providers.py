"""No limit, selector, compaction, fork or prompt splits a pair of items that providers really send."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import Compressor, History, HistoryStore, Message, PromptOptions, assemble_prompt, user
from redis_history.errors import RedisHistoryError
from redis_history.formats import Loss, from_openai_responses, paired
from redis_history.values.pairing import is_result, only_results
from tests.support.calls import STEPS, alone, conversations, opened_and_answered, refused
from tests.support.sdk import validate
from tests.support.servers import RealServer
from tests.unit.format_cases import FORMAT

every_provider = pytest.mark.parametrize("form", STEPS)
SIZES = st.integers(1, 9)


def read(form: str, items: Sequence[Any]) -> list[Message]:
    return FORMAT[form].from_(items)


def written(form: str, messages: Iterable[Message]) -> list[Any]:
    return FORMAT[form].to(messages, shape="original", on_loss=lambda loss: None)


def requested(form: str, messages: Iterable[Message]) -> list[Any]:
    losses: list[Loss] = []
    items = FORMAT[form].to(messages, shape="request", on_loss=losses.append)
    validate(form, items)
    return items


def torn(form: str, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Return the pairs that were whole before and are split now."""
    (opened, answered), (calls, answers) = opened_and_answered(form, before), opened_and_answered(form, after)
    whole = [one for one in opened if one[1] != "-" and opened.count(one) == answered.count(one)]
    lone = alone(form, before)
    return [one for one in whole if one not in lone and calls.count(one) != answers.count(one)]


@pytest.mark.proves("pairs", "paired", "prompts")
@every_provider
@given(st.data())
def test_a_request_has_whole_pairs(form: str, data: st.DataObject) -> None:
    items = data.draw(conversations(form))
    said = [*read(form, items), user("Go on.")]
    assert written(form, said[:-1]) == items
    assert refused(form, requested(form, paired(said, on_loss=lambda loss: None))) == []
    budget, most = data.draw(st.none() | st.integers(1, 120)), data.draw(st.integers(1, 12))
    options = PromptOptions(token_budget=budget, max_turns_to_load=most)
    with HistoryStore("memory://") as store:
        store.append_many("c", said)
        prompt = assemble_prompt(store, "c", "bot", "Bot", options)
        whole = assemble_prompt(store, "c", "bot", "Bot")
    assert refused(form, requested(form, prompt.messages)) == []
    assert refused(form, requested(form, whole.messages)) == []
    if refused(form, items) == []:  # then nothing is lost without a limit
        complete = [sorted(one) for one in opened_and_answered(form, items)]
        assert [sorted(one) for one in opened_and_answered(form, requested(form, whole.messages))] == complete


@pytest.mark.proves("pairs")
@every_provider
@given(st.data())
def test_selectors_and_limits_keep_pairs_whole(form: str, data: st.DataObject) -> None:
    items = data.draw(conversations(form))
    said, count = read(form, items), data.draw(SIZES)
    history = History(said)
    bounded = History(max_length=count), History(max_tokens=10 * count)
    for one in bounded:
        one.restore(said)  # all in one call: a result that follows the removal of its call would be unpaired
    shown = {
        "recent": history.recent(count),
        "range": history.range(count + 1, data.draw(st.integers(0, count))),
        "by_tokens": history.by_tokens(10 * count),
        "max_length": bounded[0].entries,
        "max_tokens": bounded[1].entries,
    }
    for name, messages in shown.items():
        assert torn(form, items, written(form, messages)) == [], name


def made_smaller(
    store: HistoryStore, said: list[Message], data: st.DataObject
) -> Iterator[tuple[str, list[Message], list[Message]]]:
    """Each way to make a conversation smaller, with what there was before and after it."""
    rest = list(said)
    while rest:
        size = data.draw(SIZES)
        before = [*store.get("c"), *rest[:size]]
        store.append_many("c", rest[:size])
        rest = rest[size:]
        yield "cap", before, store.get("c")
    if before := store.get("c"):
        store.fork("c", "f", through=data.draw(st.sampled_from(before)).id)
        yield "fork", before, store.get("f")
        with suppress(RedisHistoryError):  # it would tear a pair
            store.compact("c", through=data.draw(st.sampled_from(before)), summary="sum")
        yield "compact", before, store.get("c")
        for summary in [one for one in store.get("c") if one.is_summary]:
            store.expand("c", summary.id)
            yield "expand", before, store.get("c")
    before = store.get("c")
    Compressor(store, lambda messages, earlier: "sum", max_messages=data.draw(SIZES), keep_recent=1).run_once()
    yield "compressor", before, store.get("c")


def check_store(form: str, open_store: Callable[..., HistoryStore], data: st.DataObject) -> None:
    said = read(form, data.draw(conversations(form)))
    most = data.draw(st.none() | SIZES)
    with open_store(**({} if most is None else {"max_messages": most})) as store:
        for step, before, after in made_smaller(store, said, data):
            here = [one for one in after if not one.is_summary]
            half = torn(form, written(form, before), written(form, here))
            if step == "fork":  # copies whole messages: one with several results may answer a call behind the end, too
                several = [one for one in here if len([part for part in one.parts if is_result(part)]) > 1]
                half = [one for one in half if one not in opened_and_answered(form, written(form, several))[1]]
            assert half == [], step
            assert refused(form, requested(form, paired([*here, user("x")], on_loss=lambda loss: None))) == [], step


@pytest.mark.proves("pairs")
@every_provider
@given(st.data())
def test_caps_compaction_and_forks_in_memory(form: str, data: st.DataObject) -> None:
    check_store(form, lambda **options: HistoryStore("memory://", **options), data)


@pytest.mark.proves("pairs", "max-messages")
@every_provider
@pytest.mark.full
def test_caps_compaction_and_forks_on_redis(form: str, server: RealServer, namespace: str) -> None:
    numbers = itertools.count()

    @given(st.data())
    def check(data: st.DataObject) -> None:
        url, own = server.url, f"{namespace}{next(numbers)}"
        try:
            check_store(form, lambda **options: HistoryStore(url, namespace=own, search="off", **options), data)
        finally:
            with HistoryStore(url, namespace=own, search="off") as store:
                for record in store.list_conversations():
                    store.delete_conversation(record.conversation_id)

    check()


@pytest.mark.proves("pairs", "frameworks")
@given(conversations("openai_responses"), st.integers(1, 12))
def test_the_newest_items_of_a_session_are_whole(items: list[Any], limit: int) -> None:
    sessions = pytest.importorskip("redis_history.integrations.openai_agents")

    async def newest(store: HistoryStore) -> list[Any]:
        session = sessions.AgentsSession("s", store)
        await session.add_items(items)
        return await session.get_items(limit)  # type: ignore[no-any-return]

    with HistoryStore("memory://") as store:
        found = asyncio.run(newest(store))
    assert len(found) <= limit
    assert torn("openai_responses", items, found) == []
    assert all(item in items for item in found)
    others = [item for item in items if not all(map(only_results, from_openai_responses([item])))]
    assert [item for item in others if item in found] == [item for item in found if item in others], "results may move"

"""`assemble_prompt` on every backend, sync and async."""

from __future__ import annotations

from typing import Any

import pytest

from redis_history import Participant, assemble_prompt, assistant, system, tool, tool_result, tool_use, user
from redis_history.errors import ConfigurationError, InvalidConversationIdError, InvalidInputError

ANN = Participant("user", "ann", "Ann")
PLANNER = Participant("agent", "planner", "The planner")
CRITIC = Participant("agent", "critic", "Critic")

TALK = [
    system("Be brief.", id="s"),
    user("planner, a trip to Bath?", id="u1", participant=ANN, metadata={"mentions": ["planner"]}),
    assistant(tool_use("c1", "trains", {"to": "Bath"}), id="a1", participant=PLANNER),
    tool(tool_result("c1", "9:30"), id="t1"),
    assistant("@planner, 9:30 is too early.", id="k1", participant=CRITIC),
    user("Lovely weather.", id="u2", participant=ANN),
    assistant("Take the 10:00.", id="a2", participant=PLANNER),
]


async def test_a_prompt_of_a_talk(store: Any) -> None:
    await store.append_many("c", TALK)
    prompt = await assemble_prompt(store, "c", "planner", "The planner")
    assert [(message.id, message.role) for message in prompt.messages] == [
        ("s", "system"),
        ("u1", "user"),
        ("a1", "assistant"),
        ("t1", "tool"),
        ("k1", "user"),
        ("a2", "assistant"),
    ]
    assert prompt.messages[1].text == "Ann: planner, a trip to Bath?"
    assert prompt.messages[4].text == "Critic (agent): @planner, 9:30 is too early."
    assert prompt.report.ids("not_addressed") == ["u2"]
    assert prompt == await assemble_prompt(store, "c", "planner", "The planner", {})


async def test_the_newest_of_a_scope_are_loaded(store: Any) -> None:
    said = [user(str(n), id=str(n), scope="dm" if n % 2 else "channel") for n in range(20)]
    await store.append_many("c", said)
    prompt = await assemble_prompt(store, "c", "a", "A", {"scope": "dm", "max_turns_to_load": 3})
    assert [message.id for message in prompt.messages] == ["15", "17", "19"]
    assert prompt.report.loaded == 3


async def test_an_unknown_conversation_gives_an_empty_prompt(store: Any) -> None:
    prompt = await assemble_prompt(store, "nobody", "a", "A")
    assert prompt.messages == ()
    assert (prompt.report.tokens, prompt.report.loaded, prompt.report.left_out) == (0, 0, ())


async def test_a_summarizer_may_be_asynchronous_if_the_store_is(store: Any) -> None:
    await store.append_many("c", [user(str(n), id=str(n)) for n in range(50)])

    async def summarize(messages: list[Any]) -> str:
        return " ".join(message.text for message in messages)

    prompt = await assemble_prompt(store, "c", "a", "A", {"rolling_summary_threshold": 45}, summarize)
    assert prompt.messages[0].text == "[Earlier conversation summary: 0 1 2 3 4]"
    assert len(prompt.messages) == 46
    assert prompt.report.ids("summarised") == ["0", "1", "2", "3", "4"]


async def test_bad_input_is_refused(store: Any) -> None:
    for error, arguments in (
        (InvalidConversationIdError, ("", "a", "A")),
        (InvalidInputError, ("c", "", "A")),
        (InvalidInputError, ("c", "a", " ")),
        (ConfigurationError, ("c", "a", "A", {"token_budge": 3})),
        (ConfigurationError, ("c", "a", "A", {"token_budget": 0})),
        (InvalidInputError, ("c", "a", "A", {}, "no function")),
    ):
        with pytest.raises(error):
            await assemble_prompt(store, *arguments)  # type: ignore[call-overload]

"""`paired` orders calls and results so that the APIs accept them, and reports what it leaves out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history import (
    HistoryStore,
    Message,
    Participant,
    TextPart,
    ToolResultPart,
    assistant,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.agents.prompt import assemble_messages, assemble_prompt
from redis_history.formats import (
    Loss,
    from_anthropic,
    from_gemini,
    from_mistral,
    from_openai_chat,
    from_openai_responses,
    paired,
    to_anthropic,
    to_gemini,
    to_langchain,
    to_mistral,
    to_openai_chat,
)
from redis_history.formats.bedrock import from_bedrock, to_bedrock
from redis_history.values.sizes import message_tokens
from tests.property.strategies import ANN, BOB, tool_messages
from tests.support.sdk import is_valid, torn
from tests.unit.format_cases import FORMATS, through_storage

#: The provider runs this tool itself.
SEARCHED = [
    {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "1", "content": []},
    {"type": "text", "text": "done"},
]


def refused(messages: list[Message]) -> list[str]:
    """The calls and results for which the APIs would refuse a request with these messages."""
    found = []
    for form, to in {"openai_chat": to_openai_chat, "anthropic": to_anthropic}.items():
        for shape in ("valid", "request"):
            items = to(messages, shape=shape, on_loss=lambda loss: None)  # type: ignore[arg-type]
            assert is_valid(form, items)
            found += torn(form, items)
    return found


def ids(messages: list[Message]) -> list[str]:
    return [message.id for message in messages]


def test_messages_in_order_are_unchanged() -> None:
    messages = [
        user("q"),
        assistant("I look.", tool_use("1", "f"), tool_use("2", "f")),
        tool(tool_result("2", "r")),
        user(tool_result("1", "r"), "and hurry"),
        *from_anthropic([{"role": "assistant", "content": SEARCHED}]),
    ]
    assert all(one is other for one, other in zip(paired(messages), messages, strict=True))
    assert refused(messages[:4]) == []


@pytest.mark.proves("paired")
def test_results_follow_their_calls() -> None:
    messages = [
        assistant(tool_use("1", "f"), id="a", participant=ANN),
        assistant(tool_use("1", "g"), id="b", participant=BOB),
        user("w", id="w"),
        tool(tool_result("1", "r"), id="rb", participant=BOB),
        tool(tool_result("1", "r"), id="ra", participant=ANN),
    ]
    assert refused(messages)
    assert ids(paired(messages)) == ["a", "ra", "b", "rb", "w"]
    assert refused(paired(messages)) == []


def test_calls_and_results_without_a_partner_are_reported() -> None:
    losses: list[Loss] = []
    messages = [
        tool(tool_result("0", "r"), id="r0"),
        assistant("x", tool_use("1", "f"), id="a"),
        user("w", tool_result("9", "r"), id="w"),
        assistant(tool_use("2", "f"), id="b"),
    ]
    assert [(one.id, len(one.parts)) for one in paired(messages, on_loss=losses.append)] == [("a", 1), ("w", 1)]
    assert [(loss.message_id, loss.part) for loss in losses] == [("r0", 0), ("a", 1), ("w", 1), ("b", 0)]
    assert {loss.reason for loss in losses} == {"a tool result without its call", "a tool call without a result"}


@pytest.mark.proves("paired", "prompts")
def test_calls_and_results_within_a_reply_become_several_messages() -> None:
    """A late result of another call in the reply follows it, too."""
    with HistoryStore("memory://") as store:
        store.append("c", user("q"))
        with store.stream("c", id="a") as reply:
            for step in [
                "I look.",
                tool_use("1", "f"),
                tool_use("2", "f"),
                tool_result("1", "r"),
                "Found.",
                tool_use("3", "f"),
            ]:
                reply.write(step) if isinstance(step, str) else reply.add(step)
        store.append_many("c", [user("w"), tool(tool_result("2", "r"), id="t"), tool(tool_result("2", "r"))])
        losses: list[Loss] = []
        messages = paired(store.get("c"), on_loss=losses.append)
        assert (losses[0].message_id, losses[0].part) == ("a", 5)
        prompt = assemble_prompt(store, "c", "me")
        for found in messages, prompt.messages:
            assert [(one.role, len(one.parts)) for one in found] == [
                ("user", 1), ("assistant", 3), ("tool", 1), ("tool", 1), ("assistant", 1), ("user", 1)
            ]  # fmt: skip
            assert refused(list(found)) == []


def test_results_of_a_provider_follow_their_calls_in_the_format_of_another_one() -> None:
    losses: list[Loss] = []
    said = from_anthropic([{"role": "assistant", "content": [*SEARCHED, {"type": "thinking", "thinking": "hm"}]}])
    found = to_openai_chat(said, on_loss=losses.append)
    assert [one["role"] for one in found] == ["assistant", "tool", "assistant"]
    assert [loss.part for loss in losses] == [3]
    assert torn("openai_chat", found) == []
    assert [one["type"] for one in to_langchain(said)] == ["ai", "tool", "ai"]


@pytest.mark.proves("paired")
def test_results_come_first_in_a_message_and_in_a_turn() -> None:
    """APIs reject a text before a result, or between the results of parallel calls."""
    calls = assistant(tool_use("1", "f"), tool_use("2", "f"), tool_use("3", "f"))
    hint, both = tool(tool_result("1", "r"), text("a hint")), user(text("and"), tool_result("2", "r"))
    found = paired([user("q"), calls, hint, both, assistant(tool_result("3", "r"), "So I know.")])
    kinds = [(one.role, [type(part).__name__[:-4] for part in one.parts]) for one in found[2:]]
    assert kinds == [
        *[("tool", ["ToolResult"]), ("user", ["ToolResult"]), ("tool", ["ToolResult"])],
        *[("tool", ["Text"]), ("user", ["Text"]), ("assistant", ["Text"])],
    ]
    assert refused(found) == []
    assert refused(list(assemble_messages([user("q"), calls, hint, both], "me").messages)) == []
    (_, *one) = paired([assistant(tool_use("1", "f")), user("and", tool_result("1", "r"))])
    assert [type(part) for part in one[0].parts] == [ToolResultPart, TextPart]


def test_a_message_with_results_of_several_calls_is_split() -> None:
    calls = [assistant(tool_use(one, "f"), id=name) for one, name in (("1", "a"), ("2", "b"))]
    found = paired([*calls, user(tool_result("2", "r"), tool_result("1", "r"), "now?", id="u")])
    assert ids(found) == ["a", "u", "b", "u", "u"]
    assert found[-1].text == "now?"
    assert refused(found) == []


@pytest.mark.proves("paired")
@given(st.lists(tool_messages([user, assistant, tool], [None]), max_size=12))
def test_only_reported_parts_are_lost(messages: list[Message]) -> None:
    losses: list[Loss] = []
    found = paired(messages, on_loss=losses.append)
    lost = {(loss.message_id, loss.part) for loss in losses}
    kept = [p for m in messages for at, p in enumerate(m.parts) if (m.id, at) not in lost]
    assert sorted(map(repr, kept)) == sorted(repr(part) for message in found for part in message.parts)
    assert paired(found) == found


@pytest.mark.parametrize("place", [-1, -2])
def test_a_result_whose_call_was_compacted_is_left_out(place: int) -> None:
    """The call was given up. A prompt leaves the result out, and so does `paired`."""
    with HistoryStore("memory://") as store:
        me = Participant("agent", "me", "Me")
        store.append("c", assistant(tool_use("1", "f"), participant=me))
        store.append_many("c", [user("Are you there?"), assistant("I go on.", participant=me), user("Good.")])
        store.compact("c", through=store.get("c")[2], summary="They met.")
        late = tool(tool_result("1", "after all"), participant=me, timestamp=store.get("c")[place].timestamp)
        store.append("c", late)
        store.append("c", user("Well?"))
        assert refused(store.get("c")) == ["1"] * 4
        prompt = assemble_prompt(store, "c", "me", "Me")
        assert prompt.report.ids("pair") == [late.id]
        assert refused(prompt.messages) == []
        assert refused(paired(store.get("c"), on_loss=lambda loss: None)) == []
        assert len(prompt.messages) == 3


RAW = b"\x89PNG" * 100_000
CITED = {"format": "txt", "name": "d", "source": {"text": "It rains."}, "citations": {"enabled": True}}
RESULTS_OF_BEDROCK = {
    "video": [{"text": "see"}, {"video": {"format": "mp4", "source": {"bytes": RAW}}}],
    "in S3": [{"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k.png"}}}}, {"json": {"n": 1}}],
    "search": [{"searchResult": {"source": "https://x.test", "title": "T", "content": [{"text": "It rains."}]}}],
    "document": [{"document": CITED}],
    "of a newer version": [{"hologram": {"text": "It rains."}}],
}


@pytest.mark.parametrize("name", RESULTS_OF_BEDROCK)
def test_a_result_of_bedrock_answers_its_call_whatever_it_contains(name: str) -> None:
    use = {"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}
    result = {"toolResult": {"toolUseId": "t1", "status": "success", "content": RESULTS_OF_BEDROCK[name]}}
    items = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    said = through_storage(from_bedrock(items))
    assert to_bedrock(said) == to_bedrock(paired(said)) == items
    assert [message.role for message in said] == ["assistant", "tool"]
    assert refused(said) == []
    media = {"video": 3_000, "in S3": 1_000}.get(name, 0)
    assert media < message_tokens(said[1]) < media + 100
    text = to_openai_chat(said, on_loss=lambda loss: None)[1]["content"]
    assert {"video": "see", "in S3": "[image]"}.get(name, "It rains.") in text
    masked = replace(said[1], parts=(replace(said[1].parts[0], content="[masked]"),))
    assert to_bedrock([masked])[0]["content"][0]["toolResult"]["content"] == [{"text": "[masked]"}]


def test_an_opaque_result_of_bedrock_answers_its_call() -> None:
    use = {"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}
    items = [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1"}}]},
    ]
    said = from_bedrock(items)
    assert to_bedrock(paired(said)) == items
    assert said[1].role == "tool"


def test_tools_of_bedrock_itself_answer_in_the_message_of_the_model() -> None:
    use = {"toolUse": {"toolUseId": "t", "name": "nova_grounding", "input": {}, "type": "server_tool_use"}}
    result = {"toolUseId": "t", "content": [{"text": "r"}], "status": "success", "type": "nova_grounding_result"}
    items = [{"role": "assistant", "content": [use, {"toolResult": result}, {"text": "a"}]}]
    assert to_bedrock(assemble_messages([user("q"), *from_bedrock(items)], "me").messages)[1:] == items


def anthropic_turn(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


def called(id_: str, **keys: Any) -> Any:
    return {"type": "tool_use", "id": id_, "name": "f", "input": {}, **keys}


def answered(*ids: str) -> Any:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": one, "content": "y"} for one in ids]}


CODE = {"type": "server_tool_use", "id": "k", "name": "code_execution", "input": {"code": "f()"}}
BY_CODE = {"caller": {"type": "code_execution_20250825", "tool_id": "k"}}
RAN = {"type": "code_execution_result", "content": [], "return_code": 0, "stderr": "", "stdout": "2"}
END = {"type": "code_execution_tool_result", "tool_use_id": "k", "content": RAN}
SAID = {"type": "text", "text": "So."}
HOSTED = {
    "call, search": [anthropic_turn(called("c"), *SEARCHED[:2]), answered("c"), anthropic_turn(SAID)],
    "call, search, text": [anthropic_turn(SAID, called("c"), *SEARCHED), answered("c"), anthropic_turn(SAID)],
    "call, search, call": [anthropic_turn(called("c"), *SEARCHED[:2], called("d")), answered("c", "d")],
    "search, call": [anthropic_turn(*SEARCHED[:2], called("c")), answered("c"), anthropic_turn(SAID)],
    "code": [
        *(anthropic_turn(CODE, called("a", **BY_CODE)), answered("a")),
        *(anthropic_turn(called("b", **BY_CODE)), answered("b"), anthropic_turn(END, SAID)),
    ],
    "apart": [anthropic_turn(SEARCHED[0]), anthropic_turn(SEARCHED[1]), anthropic_turn(SAID)],
}
PROVIDERS = {
    "openai_chat": (to_openai_chat, from_openai_chat),
    "mistral": (to_mistral, from_mistral),
    "gemini": (to_gemini, from_gemini),
    "bedrock": (to_bedrock, from_bedrock),
}


@pytest.mark.parametrize("name", HOSTED)
@pytest.mark.parametrize("form", PROVIDERS)
def test_calls_that_one_provider_ran_are_calls_like_any_other_for_another_one(form: str, name: str) -> None:
    said = from_anthropic(HOSTED[name])
    to, read = PROVIDERS[form]
    prompt = list(assemble_messages([user("q"), *said, user("Go on.")], "me").messages)
    assert to_anthropic(prompt, shape="request")[1:-1] == HOSTED[name]
    for messages in said, paired(said), prompt:
        losses: list[Loss] = []
        back = read(to(messages, shape="request", on_loss=losses.append))
        assert not losses
        assert all(message.role == "tool" for message in back if message.tool_results)
        assert torn("openai_chat", to_openai_chat(back)) == []
        assert len([part for one in back for part in one.parts]) == len(
            [part for one in messages for part in one.parts]
        )


def test_a_late_result_of_a_call_by_code_comes_before_the_end_of_the_code() -> None:
    late = [anthropic_turn(CODE, called("a", **BY_CODE)), anthropic_turn(END, SAID), answered("a")]
    said = from_anthropic(late)
    for messages in paired(said), assemble_messages([user("q"), *said], "me").messages[1:]:
        assert to_anthropic(messages) == [late[0], late[2], late[1]]


def test_code_that_gemini_ran_stays_with_the_model() -> None:
    """Gemini streams code and its result as contents of their own."""
    code, result = {"code": "1+1", "language": "PYTHON"}, {"outcome": "OUTCOME_OK", "output": "2"}
    parts = [{"executable_code": code}, {"code_execution_result": result}, {"text": "2"}]
    items = [{"role": "user", "parts": [{"text": "q"}]}, *({"role": "model", "parts": [part]} for part in parts)]
    assert to_gemini(assemble_messages(from_gemini(items), "me").messages, shape="request") == items


HALF_OPAQUE = {
    "arguments": from_anthropic([anthropic_turn(called("k", input=["a"])), answered("k")]),
    "custom input": from_openai_responses(
        [
            {"type": "custom_tool_call", "call_id": "k", "name": "f", "input": None},
            {"type": "custom_tool_call_output", "call_id": "k", "output": "y"},
        ]
    ),
    "response": from_gemini(
        [
            {"role": "model", "parts": [{"text": "So."}, {"function_call": {"id": "k", "name": "f", "args": {}}}]},
            {"role": "user", "parts": [{"function_response": {"id": "k", "name": "f", "response": ["a"]}}]},
        ]
    ),
}


@pytest.mark.parametrize("name", HALF_OPAQUE)
def test_no_provider_gets_half_a_pair_whose_other_half_is_opaque(name: str) -> None:
    said = [user("q"), *HALF_OPAQUE[name], user("Go on.")]
    for form in FORMATS:
        losses: list[Loss] = []
        items = form.to(said, shape="request", on_loss=losses.append)
        assert len(losses) in (0, 2)
        assert ("'k'" in str(items)) == (not losses)
        assert "Go on." in str(items)
        assert form.to(said, shape="original", on_loss=losses.append)


def responses_turn(**keys: Any) -> list[Any]:
    return [
        {"type": "function_call", "call_id": "k", "name": "f", **keys},
        {"type": "function_call_output", "call_id": "k"},
    ]


def chat_turn(**keys: Any) -> list[Any]:
    call = {"id": "k", "type": "function", "function": {"name": "f", **keys}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [said, {"role": "tool", "content": "y", "tool_call_id": "k"}]


def bedrock_turn(**keys: Any) -> list[Any]:
    use = {"toolUse": {"toolUseId": "k", "name": "f", **keys}}
    result = {"toolResult": {"toolUseId": "k", "status": "success", "content": [{"text": "y"}]}}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]


@pytest.mark.parametrize("given", [{}, {"arguments": None}, {"arguments": ""}])
@pytest.mark.parametrize("form", ["anthropic", "bedrock", "mistral", "openai_chat", "openai_responses"])
def test_a_call_without_arguments_is_a_call_for_every_provider(form: str, given: dict[str, Any]) -> None:
    named = dict(zip(["input"], given.values(), strict=False))
    use = {"type": "tool_use", "id": "k", "name": "f", **named}
    items = {
        "anthropic": [anthropic_turn(use), answered("k")],
        "bedrock": bedrock_turn(**named),
        "openai_responses": responses_turn(**given),
    }.get(form, chat_turn(**given))
    to, read = {**PROVIDERS, **{one.name: (one.to, one.from_) for one in FORMATS}}[form]
    said = through_storage(read(items))
    assert to(said, shape="original") == items
    assert said[0].tool_uses[0].input == {}
    for other in FORMATS:
        losses: list[Loss] = []
        sent = other.to(said, on_loss=losses.append)
        assert is_valid(other.name, sent)
        assert not losses
    edited = replace(said[0], parts=(replace(said[0].tool_uses[0], input={"n": 1}),))
    assert '"n"' in str(to([edited])).replace("'", '"')

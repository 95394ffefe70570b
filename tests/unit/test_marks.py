"""The calls that the items of providers open and answer, for every item of their SDKs."""

import json
from typing import Any, get_args, get_type_hints

import pytest

from redis_history import HistoryStore, Message, UnknownPart, assemble_prompt, assistant, tool, tool_result, user
from redis_history.formats import from_langchain, paired, to_anthropic, to_langchain, to_openai_responses
from redis_history.formats.json_form import message_from_json, message_to_json
from redis_history.values.pairing import pairing
from redis_history.values.pairs import marks, open_calls, pairs_of
from redis_history.values.wire import from_map, to_map
from tests.support.members import stored
from tests.unit.format_cases import FORMAT

#: Items of the Responses API with an answer of their own, by the type of the answer.
ANSWERS = {
    "computer_call_output": "computer_call",
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "tool_search_output": "tool_search_call",
    "local_shell_call_output": "local_shell_call",
    "shell_call_output": "shell_call",
    "apply_patch_call_output": "apply_patch_call",
    "mcp_approval_response": "mcp_approval_request",
    "program_output": "program",
}


def read(form: str, *items: Any) -> list[Message]:
    return FORMAT[form].from_(items)


def pairs(form: str, *items: Any) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the ids that each part of these items answers, and the ids that it opens."""
    parts = [part for message in read(form, *items) for part in message.parts]
    return [pairing(part)[:2] for part in parts]


def types_of_items() -> dict[str, Any]:
    from openai.types.responses.response_input_item_param import ResponseInputItemParam

    hints = {item: get_type_hints(item) for item in get_args(ResponseInputItemParam)}
    return {get_args(hint["type"])[0]: hint for hint in hints.values() if len(get_args(hint["type"])) == 1}


def test_every_item_of_the_responses_api_is_paired() -> None:
    """An item with the id of a call opens the call, or answers an open call, in every version of the SDK."""
    known = types_of_items()
    assert ANSWERS.keys() | set(ANSWERS.values()) <= known.keys()
    for kind, fields in known.items():
        item = {"type": kind, **{key: "k" for key in ("call_id", "id", "approval_request_id") if key in fields}}
        answered = ANSWERS.get(kind) or (kind.removesuffix("_output") if kind.endswith("_output") else None)
        if answered is not None:
            assert known.keys() >= {answered}, f"{kind} answers an item that has another name: ANSWERS must say which"
            call = {"type": answered, **{key: "k" for key in ("call_id", "id") if key in known[answered]}}
            (_, opened), (answers, opens) = pairs("openai_responses", call, item)
            assert (opened, opens) == (answers, ()), kind
            assert opened, kind
        elif kind in ANSWERS.values() or "call_id" in fields:
            assert kind in {*ANSWERS.values()} | {f.removesuffix("_output") for f in known}, kind
            assert [opens for _, opens in pairs("openai_responses", item) if opens], kind
        elif kind not in ("message", "reasoning"):
            assert pairs("openai_responses", item) == [((), ())], kind


def test_an_item_of_a_newer_version_is_paired() -> None:
    assert pairs("openai_responses", {"type": "robot_call", "id": "r", "call_id": "k", "arm": 1}) == [((), ("k",))]
    assert pairs("openai_responses", {"type": "robot_call_output", "id": "o", "call_id": "k"}) == [(("k",), ())]
    [message] = read("openai_responses", {"type": "robot_call_output", "call_id": "k"})
    assert message.role == "tool"


def test_every_block_of_anthropic_is_paired() -> None:
    from anthropic.types.beta.beta_content_block_param import BetaContentBlockParam

    blocks = map(get_type_hints, (block for block in get_args(BetaContentBlockParam) if isinstance(block, type)))
    known = {get_args(fields["type"])[0]: fields for fields in blocks}
    assert {"server_tool_use", "mcp_tool_use", "mcp_tool_result", "code_execution_tool_result"} <= known.keys()
    values = {"id": "k", "tool_use_id": "k", "name": "f", "input": {}, "content": []}
    for kind, fields in known.items():
        block = {"type": kind, **{key: value for key, value in values.items() if key in fields}}
        expected: Any = ((), ())
        if "input" in fields:
            expected = ((), ("k",))
        elif "tool_use_id" in fields:
            expected = (("k",), ())
        assert pairs("anthropic", {"role": "assistant", "content": [block]}) == [expected], kind


@pytest.mark.parametrize("camel", [False, True])
def test_parts_of_gemini(camel: bool) -> None:
    def named(name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(map(str.capitalize, rest)) if camel else name

    def content(**part: Any) -> Any:
        return {"role": "model", "parts": [{named(name): value for name, value in part.items()}]}

    assert pairs(
        "gemini",
        content(executable_code={"code": "1"}),
        content(code_execution_result={"outcome": "OUTCOME_OK"}),
        content(executable_code={"code": "1", "id": "e"}),
        content(code_execution_result={"outcome": "OUTCOME_OK", "id": "e"}),
        content(tool_call={"id": "t"}),
        content(tool_response={"id": "t"}),
        content(function_call={"name": "f", "args": "broken"}),
        content(function_response={"name": "f", "response": {}}),
        content(function_call={"id": "g", "name": "f"}),
    ) == [
        *[((), ("/code",)), (("/code",), ()), ((), ("e",)), (("e",), ())],
        *[((), ("t",)), (("t",), ()), ((), ("f",)), (("f",), ()), ((), ("g",))],
    ]


@pytest.mark.parametrize("form", ["openai_chat", "mistral"])
def test_an_unknown_kind_of_call_has_its_result(form: str) -> None:
    call = {"id": "k", "type": "robot", "robot": {"arm": 1}}
    items = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "k", "content": "done"},
    ]
    assert pairs(form, *items) == [((), ("k",)), (("k",), ())]
    assert FORMAT[form].to(paired([*read(form, *items), user("x")]), shape="original")[:2] == items


def test_the_marks_of_a_part_survive_everything() -> None:
    [message] = read("openai_responses", {"type": "shell_call", "call_id": "k", "caller": {"caller_id": "p"}})
    assert pairing(message.parts[0]) == (("p",), ("p", "k"), False)
    kept = [
        stored(message, 1),
        from_map(to_map(message)),
        message_from_json(json.loads(json.dumps(message_to_json(message)))),
    ]
    assert [pairing(one.parts[0]) for one in kept] == [pairing(message.parts[0])] * 3
    assert [marks(one) for one in kept] == [marks(message)] * 3
    assert marks(message)[:1] == b"r"


@pytest.mark.parametrize("pair", [None, "k", {}, {"opens": 5}, {"answers": ["k"]}, {"within": None}])
def test_an_opaque_part_without_ids_is_in_no_pair(pair: Any) -> None:
    part = UnknownPart(data={"type": "quiz", "answers": "B", "opens": "9:00", "pair": pair})
    assert pairing(part) == ((), (), False)
    assert marks(assistant(part)) == b""
    said = [assistant("Which?", part), user("B")]
    assert paired(said) == said


SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
PROGRAM = [
    {"type": "program", "id": "pg", "call_id": "p", "code": "f()", "fingerprint": "F"},
    {
        "type": "function_call",
        "call_id": "k",
        "name": "f",
        "arguments": "{}",
        "caller": {"type": "program", "caller_id": "p"},
    },
    {"type": "function_call_output", "call_id": "k", "output": "1"},
]


def test_only_calls_that_a_result_can_answer_are_settled() -> None:
    """Calls of a computer, whose output is a screenshot, and calls that the provider answers itself are excluded."""
    said = [
        *read("openai_responses", {"type": "computer_call", "id": "c", "call_id": "c"}, PROGRAM[1] | {"caller": None}),
        *read("anthropic", {"role": "assistant", "content": [SEARCH]}),
    ]
    assert [[call.id for call in calls] for _, calls in open_calls(said)] == [["k"]]


def test_a_custom_tool_gets_the_output_of_a_custom_tool() -> None:
    said = read("openai_responses", {"type": "custom_tool_call", "call_id": "k", "name": "f", "input": "x"})
    items = to_openai_responses([*said, tool(tool_result("k", "The call was stopped before it returned."))])
    assert [item["type"] for item in items] == ["custom_tool_call", "custom_tool_call_output"]


@pytest.mark.proves("pairs")
def test_a_program_goes_on_until_somebody_speaks() -> None:
    """The API continues a program with the output of its last call, so a request at that moment must have it."""
    said = read("openai_responses", {"role": "user", "content": "q"}, *PROGRAM)
    assert to_openai_responses(paired(said), shape="original")[1:] == PROGRAM
    with HistoryStore("memory://") as store:
        store.append_many("c", said)
        assert to_openai_responses(assemble_prompt(store, "c", "bot").messages, shape="original")[1:] == PROGRAM
        store.append("c", user("Never mind."))
        prompt = assemble_prompt(store, "c", "bot")
    assert [message.text for message in prompt.messages] == ["q", "Never mind."]
    assert [one.reason for one in prompt.report.left_out] == ["pair", "pair"]


THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ([THOUGHT, USE], []),
        ([THOUGHT, {"type": "text", "text": "\n"}, USE], []),
        ([THOUGHT, {"type": "text", "text": "I look."}, USE], ["thinking", "text"]),
        ([THOUGHT, USE, USE | {"id": "t2"}], ["thinking", "tool_use"]),
        ([THOUGHT, USE, THOUGHT, USE | {"id": "t2"}], ["thinking", "tool_use"]),
        ([USE | {"id": "t2"}, THOUGHT, USE], ["tool_use"]),
        ([{"type": "redacted_thinking", "data": "x"}, THOUGHT, USE], []),
        ([THOUGHT], []),
    ],
)  # fmt: skip
def test_reasoning_goes_with_its_item(content: list[Any], kept: list[str]) -> None:
    """The call `t1` stays without a result."""
    results = [{"type": "tool_result", "tool_use_id": "t2", "content": "y"}] if USE | {"id": "t2"} in content else []
    items = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": content},
        *([{"role": "user", "content": results}] if results else []),
        {"role": "user", "content": "Never mind."},
    ]
    said = read("anthropic", *items)
    with HistoryStore("memory://") as store:
        store.append_many("c", said)
        prompt = assemble_prompt(store, "c", "bot").messages
    for messages in (paired(said, on_loss=lambda loss: None), prompt):
        replies = [one["content"] for one in to_anthropic(messages) if one["role"] == "assistant"]
        assert [block["type"] for reply in replies for block in (reply if isinstance(reply, list) else [])] == kept


def test_reasoning_that_was_stored_apart_goes_into_the_next_message() -> None:
    items = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [THOUGHT]},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "y"}]},
    ]
    said = read("anthropic", *items)
    with HistoryStore("memory://") as store:
        store.append_many("c", said)
        prompt = assemble_prompt(store, "c", "bot")
    for messages in (paired(said), prompt.messages):
        assert to_anthropic(messages) == [items[0], {"role": "assistant", "content": [THOUGHT, USE]}, items[3]]
    assert prompt.report.left_out == ()


def test_the_signature_of_parallel_calls_stays() -> None:
    def call(name: str, **more: Any) -> Any:
        return {"function_call": {"id": name, "name": name, "args": {}}, **more}

    contents = [
        {"role": "user", "parts": [{"text": "q"}]},
        {"role": "model", "parts": [call("a", thought_signature="c2ln"), call("b"), call("c")]},
        {"role": "user", "parts": [{"function_response": {"id": "b", "name": "b", "response": {"output": 1}}}]},
        {"role": "user", "parts": [{"function_response": {"id": "c", "name": "c", "response": {"output": 1}}}]},
    ]
    said = read("gemini", *contents)
    found = FORMAT["gemini"].to(paired(said, on_loss=lambda loss: None))
    assert found[1] == {"role": "model", "parts": [call("b", thought_signature="c2ln"), call("c")]}


def test_a_block_of_a_provider_in_langchain_goes_with_its_call() -> None:
    call = {"name": "f", "args": {}, "id": "t1", "type": "tool_call"}
    data = {"content": [{"type": "text", "text": "I look."}, USE], "tool_calls": [call]}
    result = {"type": "tool", "data": {"content": "y", "tool_call_id": "t1", "status": "success"}}
    said = from_langchain([{"type": "ai", "data": data}, result])
    assert [one["data"]["content"] for one in to_langchain(paired(said))] == [data["content"], "y"]
    [alone] = to_langchain(paired(said[:1], on_loss=lambda loss: None))
    assert (alone["data"]["content"], alone["data"]["tool_calls"]) == (data["content"][:1], [])


def test_an_approval_is_not_a_result_of_the_call_that_it_approves() -> None:
    """Agent Framework uses the id of the call for the approval, too."""
    framework = pytest.importorskip("redis_history.integrations.agent_framework")
    from agent_framework import Content
    from agent_framework import Message as FrameworkMessage

    call = Content.from_function_call("k", "f", arguments="{}")
    request = Content.from_function_approval_request("k", call)
    response = Content.from_function_approval_response(True, "k", call)
    said = framework.from_agent_framework(
        [
            FrameworkMessage("assistant", [call, request]),
            FrameworkMessage("user", [response]),
            FrameworkMessage("tool", [Content.from_function_result("k", result="y")]),
        ]
    )
    assert pairs_of(said).call_of == {(1, 0): (0, 1), (2, 0): (0, 0)}
    assert pairs_of(said[:2]).lone() == {(0, 0)}
    assert pairs_of([said[0], said[2]]).lone() == {(0, 1)}


def test_the_tools_of_a_provider_in_pydantic_ai() -> None:
    adapter = pytest.importorskip("redis_history.integrations.pydantic_ai")
    from pydantic_ai.messages import ModelResponse, NativeToolCallPart, NativeToolReturnPart

    call = NativeToolCallPart("web_search", {"query": "q"}, tool_call_id="k")
    result = NativeToolReturnPart("web_search", "found", tool_call_id="k")
    said = adapter.from_pydantic_ai([ModelResponse([call, result])])
    assert [pairing(part) for part in said[0].parts] == [((), ("k",), True), (("k",), (), True)]
    assert adapter.to_pydantic_ai(said)[0].parts == [call, result]

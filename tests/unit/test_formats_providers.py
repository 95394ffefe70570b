"""Rules that hold for every format, conversions between providers, and what is special in single formats."""

import json
import logging
import math
from typing import Any

import msgspec
import pytest

from redis_history import AttachmentPart, ReasoningPart, assistant, formats, system, tool, tool_result, tool_use, user
from redis_history.errors import InvalidInputError, InvalidMessageError
from tests.support.sdk import validate
from tests.unit.format_cases import FORMAT, FORMATS, every_format, through_storage


def texts_of(item: Any) -> list[str]:
    """The texts in a message of any provider."""
    content = item.get("content", item.get("parts"))
    return [content] if isinstance(content, str) else [block["text"] for block in content]


PARALLEL = [
    user("Weather in two towns?"),
    assistant("I look.", tool_use("a", "find", {"city": "Oslo"}), tool_use("b", "find", {"city": "Rome"})),
    tool(tool_result("b", "sun"), tool_result("a", "rain")),
    assistant("Rain and sun."),
]


@every_format
def test_parallel_calls_stay_in_one_message(format_):
    back = format_.there_and_back(PARALLEL, on_loss=pytest.fail)
    assert [[use.id for use in m.tool_uses] for m in back if m.tool_uses] == [["a", "b"]]
    assert [result.tool_use_id for m in back for result in m.tool_results] == ["b", "a"]
    assert [m.text for m in back if m.role == "assistant" and m.text] == ["I look.", "Rain and sun."]


@every_format
def test_an_unknown_role_is_reported_and_restored_in_the_original_shape(format_):
    body = {"parts": [{"text": "done"}]} if format_.name == "gemini" else {"content": "done"}
    theirs = [{"role": "exit", **body}]
    messages = format_.from_(theirs)
    assert messages[0].role == "user"
    losses: list[formats.Loss] = []
    items = format_.to(messages, on_loss=losses.append)
    validate(format_.name, items)
    assert items == [{"role": "user", **body}]
    assert ["exit" in loss.reason for loss in losses] == [True]
    assert format_.to(messages, shape="original", on_loss=pytest.fail) == theirs


THINKING = {"type": "thinking", "signature": "c2ln"}
SIGNED = {
    "anthropic": {"role": "assistant", "content": [{**THINKING, "thinking": "hm"}]},
    "gemini": {"role": "model", "parts": [{"text": "hm", "thought": True, "thought_signature": "c2ln"}]},
    "mistral": {"role": "assistant", "content": [{**THINKING, "thinking": [{"type": "text", "text": "hm"}]}]},
    "openai_responses": {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "c2ln"},
}


@every_format
def test_a_signature_is_sent_only_to_its_provider(format_):
    for owner, item in SIGNED.items():
        (message,) = FORMAT[owner].from_([item])
        assert message.parts[0].signature == "c2ln"
        losses: list[formats.Loss] = []
        sent = repr(format_.to([message, assistant("4")], on_loss=losses.append))
        assert ("c2ln" in sent) == (owner == format_.name)
        assert bool(losses) == (owner != format_.name)


@every_format
def test_signed_reasoning_without_a_provider_is_sent_to_any(format_):
    back = format_.there_and_back([assistant(ReasoningPart("hm", signature="c2ln"), "4")], on_loss=lambda loss: None)
    thought = [p for m in back for p in m.parts if isinstance(p, ReasoningPart)]
    assert [p.signature for p in thought] == ([] if format_.name == "openai_chat" else ["c2ln"])


@every_format
def test_wrong_arguments_are_rejected(format_):
    for item in ("text", 5, None, user("x")):
        with pytest.raises(InvalidMessageError, match="message 1"):
            format_.from_([{"role": "user", "content": "x", "parts": []}, item])
    with pytest.raises(InvalidInputError):
        format_.to([], shape="exact")


@every_format
def test_without_a_callback_one_warning_is_logged(format_, caplog):
    film = AttachmentPart(modality="video", id="x")
    with caplog.at_level(logging.WARNING, logger="redis_history.formats"):
        items = format_.to([user(film), user(film)])
    assert [texts_of(item) for item in items] == [["File: video"]] * 2
    assert len(caplog.records) == 1
    assert "2 times" in caplog.text


def test_a_request_has_no_keys_of_replies_and_keeps_reasoning():
    reply = {"id": "msg_1", "type": "message", "role": "assistant", "content": "hi", "usage": {"input_tokens": 1}}
    assert formats.to_anthropic(formats.from_anthropic([reply])) == [reply]
    assert formats.to_anthropic(formats.from_anthropic([reply]), shape="request") == [
        {"role": "assistant", "content": "hi"}
    ]
    details = [{"type": "reasoning.encrypted", "data": "c2ln"}]
    tools = [{"type": "python", "output": "4"}]
    sent = {"role": "assistant", "content": "4", "reasoning_details": details, "reasoning_content": "x"}
    reply = {**sent, "executed_tools": tools, "usage": None, "provider_specific_fields": {}}
    messages = through_storage(formats.from_openai_chat([reply]))
    losses: list[formats.Loss] = []
    assert formats.to_openai_chat(messages, shape="request", on_loss=losses.append) == [sent]
    assert [(loss.message_id, "executed_tools" in loss.reason) for loss in losses] == [(messages[0].id, True)]
    assert formats.to_openai_chat(messages, on_loss=pytest.fail) == [reply]


@pytest.mark.parametrize("shape", ["valid", "original", "request"])
def test_blocks_of_anthropic_stay_in_its_system_messages(shape):
    block = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
    theirs = [{"role": "user", "content": "x"}, {"role": "system", "content": [block]}]
    assert (
        formats.to_anthropic(through_storage(formats.from_anthropic(theirs)), shape=shape, on_loss=pytest.fail)
        == theirs
    )


def test_items_of_responses_stay_as_they_are():
    texts = [{"type": "output_text", "text": text, "annotations": []} for text in "ab"]
    items = [
        {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed", "content": texts},
        {"id": "msg_1"},
        {"type": None, "role": "user", "content": "x"},
        {"type": "reasoning", "summary": [], "encrypted_content": "c2ln"},
        {"payload": "gAAAA", "kid": "k", "v": 1},
    ]
    messages = through_storage(formats.from_openai_responses(items))
    assert formats.to_openai_responses(messages, shape="original", on_loss=pytest.fail) == items
    (thought,) = (item for item in formats.to_openai_responses(messages) if item.get("type") == "reasoning")
    assert thought["id"], "the types of the API require one"


IMAGE = {"type": "input_image", "detail": "auto", "image_url": "https://x.test/a.png"}


@pytest.mark.proves("round-trip")
@pytest.mark.parametrize("keys", [{}, {"type": "message", "phase": "commentary"}])
@pytest.mark.parametrize("texts", [["See"], ["See", "this"]])
def test_blocks_of_an_input_come_back_in_a_message_of_the_assistant(keys, texts):
    blocks = [{"type": "input_text", "text": text} for text in texts]
    for content in (blocks, [*blocks, IMAGE], [IMAGE]):
        items = [{**keys, "role": "assistant", "content": content}]
        validate("openai_responses", items)
        messages = FORMAT["openai_responses"].restored(items)
        assert formats.to_openai_responses(through_storage(messages), on_loss=pytest.fail) == items
    (message,) = formats.from_openai_responses([{**keys, "role": "assistant", "content": blocks}])
    assert message.text == "\n".join(texts), "it can be searched"
    reply = {**keys, "role": "assistant", "content": [{"type": "output_text", "text": "Hm", "annotations": []}]}
    given = formats.to_openai_responses(formats.from_openai_responses([reply]))
    assert given == [{**keys, "role": "assistant", "content": "Hm"}], "blocks of a reply need an id"


N = 2**70


def holding(name: str, value: Any) -> list[Any]:
    """Return messages of a provider with `value` at each place that accepts any value."""
    own = {"own": value}
    if name == "anthropic":
        return [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": value}], **own},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": value, **own}]},
            {"role": "user", "content": [{"type": "text", "text": "x", **own}, {"type": "new", **own}]},
        ]
    if name == "gemini":
        return [
            {"role": "model", "parts": [{"function_call": {"id": "c", "name": "f", "args": value}}], **own},
            {"role": "user", "parts": [{"function_response": {"id": "c", "name": "f", "response": value}}]},
            {"role": "user", "parts": [{"text": "x", **own}, {"new": value}]},
        ]
    if name == "openai_responses":
        return [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": value, **own},
            {"type": "function_call_output", "call_id": "c", "output": value, **own},
            {"type": "reasoning", "summary": [{"text": "x", **own}]},
            {"type": "new", **own},
            {"role": "user", "content": [{"type": "input_text", "text": "x", **own}], **own},
        ]
    return [
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": value}, **own}]},
        {"role": "tool", "tool_call_id": "c", "content": value, **own},
        {"role": "user", "content": [{"type": "text", "text": "x", **own}, {"type": "new", **own}]},
    ]


@pytest.mark.proves("round-trip")
@every_format
@pytest.mark.parametrize("value", [{"n": N, "list": [-(2**64), 1.5]}, {"size": (1, (2, 3))}, {"n": (N,)}], ids=str)
def test_integers_of_any_size_survive_and_tuples_become_lists(format_, value):
    theirs, lists = (json.loads(json.dumps(one)) for one in (holding(format_.name, value), value))
    messages = through_storage(format_.from_(holding(format_.name, value)))
    assert format_.to(messages, shape="original", on_loss=pytest.fail) == theirs
    (use,) = (use for message in messages for use in message.tool_uses)
    assert isinstance(use.input, str) == ("n" in value)
    assert lists == (json.loads(use.input) if "n" in value else use.input)
    for other in FORMATS:
        assert ("n" not in value) or str(N) in str(other.to(messages, on_loss=lambda loss: None))


def test_numbers_that_are_not_finite_survive():
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"x": math.inf}}
    theirs = [{"role": "assistant", "content": [call]}]
    messages = through_storage(formats.from_anthropic(theirs))
    assert formats.to_anthropic(messages, on_loss=pytest.fail) == theirs
    call["input"]["x"] = math.nan
    (message,) = through_storage(formats.from_anthropic(theirs))
    assert message.tool_uses[0].input == '{"x": NaN}'
    assert math.isnan(formats.to_anthropic([message])[0]["content"][0]["input"]["x"])
    assert formats.to_openai_chat([message])[0]["tool_calls"][0]["function"]["arguments"] == '{"x": NaN}'


def test_blocks_of_a_result_are_converted_between_providers():
    see = {"type": "text", "text": "see"}
    content = [see, {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}}]
    losses: list[formats.Loss] = []
    said = [tool(tool_result("c", content, name="f"))]
    assert formats.to_anthropic(said)[0]["content"][0]["content"] == content
    assert formats.to_openai_responses(said)[0]["output"] == [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "detail": "auto", "image_url": "https://x.test/a.png"},
    ]
    assert formats.to_mistral(said)[0]["content"][1] == {"type": "image_url", "image_url": "https://x.test/a.png"}
    hint = {"type": "text", "text": "File: image"}
    assert formats.to_openai_chat(said, on_loss=losses.append)[0]["content"] == [see, hint]
    assert len(losses) == 1
    assert formats.to_openai_chat([tool(tool_result("c", None))])[0]["content"] == ""
    # Values that only look like blocks become JSON.
    said = [tool(tool_result("c", [1, {"type": "new"}], name="f"))]
    assert formats.to_anthropic(said)[0]["content"][0]["content"] == '[1, {"type": "new"}]'
    assert formats.to_gemini(said)[0]["parts"][0]["function_response"]["response"] == {"output": [1, {"type": "new"}]}


def test_gemini_calls_without_ids_match_their_results_when_converted_separately():
    asked = {"role": "model", "parts": [{"functionCall": {"name": "get.it", "args": {"n": n}}} for n in (1, 2)]}
    answers = [{"functionResponse": {"name": "get.it", "response": {"n": n}}} for n in (1, 2)]
    answered = {"role": "user", "parts": answers}
    (call,), (result,) = formats.from_gemini([asked]), formats.from_gemini([answered])
    assert [use.id for use in call.tool_uses] == ["get_it", "get_it-2"]
    assert [one.tool_use_id for one in result.tool_results] == ["get_it", "get_it-2"]
    assert result.role == "tool"
    assert formats.to_gemini([call, result]) == [asked, answered]


def called(id_: Any = None, name: str = "f") -> Any:
    return {"function_call": {**({} if id_ is None else {"id": id_}), "name": name, "args": {}}}


def responded(**keys: Any) -> Any:
    return {"function_response": {"response": {"output": "y"}, **keys}}


@pytest.mark.parametrize(
    ("steps", "answered"),
    [
        ([[called("k")], [responded(name="f")]], ["k"]),
        ([[called("k"), called("l")], [responded(name="f"), responded(name="f")]], ["k", "l"]),
        ([[called("k"), called("l", "g")], [responded(name="g"), responded(name="f")]], ["l", "k"]),
        ([[called("k"), called("l")], [responded(name="f"), responded(id="k", name="f")]], ["l", "k"]),
        ([[called("k")], [{"text": "and"}], [called("l")], [responded(name="f")]], ["l"]),  # the first run died
        ([[called("k")], [], [called("l")], [], [responded(name="f"), responded(name="f")]], ["l", "k"]),
        ([[called()], [responded(id="own", name="f")]], ["f"]),
        ([[called("k")], [responded(id="k")]], ["k"]),
        ([[called("k")], [responded(id="k", name="f", response=None)]], ["k"]),
        ([[called(), called()], [responded(name="f")], [responded(name="f")]], ["f", "f-2"]),
    ],
)
def test_gemini_responses_answer_the_calls_that_they_do_not_name(steps: list[Any], answered: list[str]) -> None:
    """The SDK's `Part.from_function_response` sets no id, although the API gives each call one."""
    items = [{"role": "model" if "function_call" in str(parts) else "user", "parts": parts} for parts in steps]
    said = FORMAT["gemini"].restored(items)
    assert [one.tool_use_id for message in said for one in message.tool_results] == answered
    losses: list[formats.Loss] = []
    opened = [call.id for message in formats.paired(said, on_loss=losses.append) for call in message.tool_uses]
    assert sorted(opened) == sorted(answered)
    assert all("without a result" in loss.reason for loss in losses)


def test_anthropic_gets_ids_of_calls_that_it_accepts():
    """Those of other models may have other characters, or be used again in each turn."""
    turn = [assistant(tool_use("functions.f:0", "f"), tool_use("functions.f:0", "g")), user("x")]
    turn[1:1] = [tool(tool_result("functions.f:0", "g")), tool(tool_result("functions.f:0", "f"))]
    blocks = [
        block for item in formats.to_anthropic([*turn, *turn]) if item["content"] != "x" for block in item["content"]
    ]
    calls = [(block["id"], block["name"]) for block in blocks if block["type"] == "tool_use"]
    assert [id_ for id_, _ in calls] == ["functions_f_0", *(f"functions_f_0-{number}" for number in (2, 3, 4))]
    assert sorted((b["tool_use_id"], b["content"]) for b in blocks if b["type"] == "tool_result") == sorted(calls)
    theirs = formats.to_anthropic(turn, shape="original")
    assert theirs[0]["content"][1]["id"] == "functions.f:0"
    assert formats.to_anthropic(formats.from_anthropic(theirs)) == theirs


@pytest.mark.proves("paired")
def test_gemini_gets_the_results_of_parallel_calls_in_one_content():
    """The API rejects other numbers of results than of calls in the turn before."""
    calls = assistant(tool_use("1", "f"), tool_use("2", "f"), tool_use("3", "f"))
    said = [calls, tool(tool_result("2", "b")), tool(tool_result("1", "a")), user(tool_result("3", "c"), "and?")]
    (asked, answered), after = formats.to_gemini(said)[:2], formats.to_gemini([*said, user("well"), *said])[2:]
    assert [one["function_response"]["id"] for one in answered["parts"][:3]] == ["2", "1", "3"]
    assert after == [{"role": "user", "parts": [{"text": "well"}]}, asked, answered]
    apart = [asked, *({"role": "user", "parts": [one]} for one in answered["parts"])]
    assert formats.to_gemini(formats.from_gemini(apart)) == apart


def test_gemini_names_and_signatures_of_calls():
    (_, response) = formats.to_gemini([assistant(tool_use("c", "find")), tool(tool_result("c", "rain", is_error=True))])
    assert response["parts"][0]["function_response"] == {"id": "c", "name": "find", "response": {"error": "rain"}}
    assert formats.to_gemini_system([system("a"), system("b")]) == {"parts": [{"text": "a"}, {"text": "b"}]}
    assert formats.to_gemini_system([user("x")]) is None
    for signature in (b"\x00\xff", "AP8="):
        part = {"function_call": {"name": "f", "args": {}}, "thought_signature": signature}
        theirs = [{"role": "model", "parts": [part]}]
        assert formats.to_gemini(formats.from_gemini(theirs)) == theirs


def test_responses_objects_of_the_sdk_are_accepted():
    from openai.types.responses import ResponseFunctionToolCall, ResponseReasoningItem

    call = ResponseFunctionToolCall(type="function_call", id="fc", call_id="c", name="f", arguments="{}")
    thought = ResponseReasoningItem(type="reasoning", id="r", summary=[], encrypted_content="c2ln", status=None)
    (message,) = formats.from_openai_responses([thought, call])
    assert message.tool_uses[0].id == "c"
    items = formats.to_openai_responses([message])
    validate("openai_responses", items)
    assert items[0] == {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "c2ln"}


def test_mistral_ids_of_nine_letters():
    said = [assistant(tool_use("call_very_long_id", "f")), tool(tool_result("call_very_long_id", "x"))]
    call, result = formats.to_mistral(said, short_ids=True)
    (made,) = (one["id"] for one in call["tool_calls"])
    assert result["tool_call_id"] == made
    assert made.isalnum()
    assert len(made) == 9
    kept = formats.to_mistral([assistant(tool_use("abcDEF123", "f"))], short_ids=True)
    assert kept[0]["tool_calls"][0]["id"] == "abcDEF123"


def test_calls_by_the_user():
    said = [user("I do it", tool_use("c", "toggle", {"on": True})), tool(tool_result("c", "ok", name="toggle"))]
    losses: list[formats.Loss] = []
    assert [item["role"] for item in formats.to_mistral(said, on_loss=losses.append)] == ["user", "assistant", "tool"]
    items = formats.to_openai_responses(said, on_loss=losses.append)
    assert [item.get("type") for item in items] == [None, "function_call", "function_call_output"]
    assert len(losses) == 2
    for to in (formats.to_anthropic, formats.to_gemini, formats.to_openai_chat):
        to(said, on_loss=pytest.fail)


def test_text_documents_go_to_anthropic_as_text():
    note = AttachmentPart(modality="document", name="a.txt", reference="data:text/plain;base64,aGk=")
    (item,) = formats.to_anthropic([user(note)], on_loss=pytest.fail)
    assert item["content"][0]["source"] == {"type": "text", "media_type": "text/plain", "data": "hi"}


# Files by reference

FILE_ID = "file_011CNha8iCJcU1wXNR6q4V8w-x"


@every_format
@pytest.mark.parametrize("modality", [None, "document", "image", "file", "text"])
def test_a_file_id_reaches_every_provider_that_takes_file_ids(format_, modality):
    part = AttachmentPart(name="report.pdf", modality=modality, reference=FILE_ID)
    losses = []
    items = format_.to([user("see", part, id="m")], on_loss=losses.append)
    validate(format_.name, items)
    if format_.name == "gemini":
        assert FILE_ID not in str(items)
        assert [(loss.message_id, loss.part) for loss in losses] == [("m", 1)]
        return
    kind = "input_image" if modality == "image" else "input_file"
    block = items[0]["content"][1]
    assert {
        "anthropic": block.get("source") == {"type": "file", "file_id": FILE_ID},
        "mistral": block == {"type": "file", "file_id": FILE_ID},
        "openai_chat": block == {"type": "file", "file": {"file_id": FILE_ID, "filename": "report.pdf"}},
        "openai_responses": (block["type"], block.get("file_id")) == (kind, FILE_ID),
    }[format_.name]
    for shape in ("valid", "original", "request"):
        stored = through_storage(format_.from_(items))
        assert stored[0].parts[1].reference == FILE_ID
        assert format_.to(stored, shape=shape) == items
    back = stored[0].parts[1]
    kept = back.modality == (modality if modality == "image" else "document")
    assert len(losses) == (not kept or back.name is None)


@every_format
def test_a_reference_that_is_neither_file_id_nor_url_is_reported(format_):
    """The model reads the name instead."""
    for reference in ("uploads/a.pdf", "a.pdf", "s3://bucket/a.pdf", "C:\\a.pdf", "ftp://x.test/a", ""):
        for role in (user, assistant):
            losses = []
            message = role(AttachmentPart(name="report.pdf", reference=reference), id="m")
            (item,) = format_.to([message], on_loss=losses.append)
            validate(format_.name, [item])
            assert texts_of(item) == ["File: report.pdf"]
            assert [(loss.message_id, loss.part) for loss in losses] == [("m", 0)]
            assert "File: " not in str(format_.to([message], shape="original", on_loss=losses.append))


UPLOADED = {
    "anthropic": {"type": "document", "source": {"type": "file", "file_id": "f 1:x"}},
    "mistral": {"type": "file", "file_id": "f 1:x"},
    "openai_chat": {"type": "file", "file": {"file_id": "f 1:x"}},
    "openai_responses": {"type": "input_file", "file_id": "f 1:x"},
}


@every_format
@pytest.mark.parametrize("owner", UPLOADED)
def test_an_imported_file_id_is_sent_only_to_its_provider(format_, owner):
    [message] = through_storage(FORMAT[owner].from_([{"role": "user", "content": [UPLOADED[owner]]}]))
    losses = []
    items = format_.to([message], on_loss=losses.append)
    if format_.name.partition("_")[0] == owner.partition("_")[0]:  # both formats of OpenAI have the same files
        assert "f 1:x" in str(items)
        assert not losses
    else:
        assert (texts_of(items[0]), len(losses)) == (["File: document"], 1)
        assert "f 1:x" not in str(items)
    edited = msgspec.structs.replace(message.parts[0], reference="data:application/pdf;base64,AAAA")
    assert "f 1:x" not in str(format_.to([user(edited)]))
    assert "AAAA" in str(format_.to([user(edited)]))


@pytest.mark.parametrize("mime", [{}, {"mime_type": None}, {"mime_type": ""}])
def test_gemini_data_without_a_type_is_a_valid_data_url(mime):
    original = {"role": "user", "parts": [{"inline_data": {**mime, "data": "QUJD"}}]}
    (message,) = FORMAT["gemini"].restored([original])
    assert message.parts[0].reference == "data:application/octet-stream;base64,QUJD"


@pytest.mark.parametrize("data", ["AAAA", "aGk="])
def test_inline_data_is_not_mistaken_for_a_file_id(data):
    inline = {"file_data": data}
    blocks = {"openai_chat": {"type": "file", "file": inline}, "openai_responses": {"type": "input_file", **inline}}
    for name, block in blocks.items():
        messages = FORMAT[name].restored([{"role": "user", "content": [block]}])
        losses = []
        assert formats.to_anthropic(messages, on_loss=losses.append) == [{"role": "user", "content": "File: document"}]
        assert len(losses) == 1


def test_file_ids_in_tool_results_stay_with_their_provider():
    content = [{"type": "document", "source": {"type": "file", "file_id": "file_1"}}]
    messages = [user("x"), assistant(tool_use("c", "f")), tool(tool_result("c", content))]
    assert formats.to_anthropic(messages)[2]["content"][0]["content"] == content
    losses = []
    assert "file_1" not in str(formats.to_openai_responses(messages, on_loss=losses.append))
    assert len(losses) == 1


def test_langchain_accepts_file_ids_without_names():
    losses = []
    formats.to_langchain([user(AttachmentPart(name="a.pdf", reference="file-1"))], on_loss=losses.append)
    assert [loss.reason for loss in losses] == ["the name of a file"]
    part = AttachmentPart(modality="document", reference="file-1")
    items = formats.to_langchain([user("see", part)])
    assert items[0]["data"]["content"][1] == {"type": "file", "file_id": "file-1"}
    [message] = through_storage(formats.from_langchain(items))
    assert message.parts[1].reference == "file-1"
    assert formats.to_langchain([message]) == items
    assert "file-1" in str(formats.to_mistral([message]))

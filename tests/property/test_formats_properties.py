"""Any valid messages, to each provider and back; and anything a provider may say, to messages and back."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import AttachmentPart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from redis_history.formats import Loss
from tests.property.strategies import json_maps, json_values, messages, texts
from tests.support.sdk import validate
from tests.unit.format_cases import FORMATS, Format, through_storage, turns

every_format = pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f.name)

ids = st.text("abcXYZ019_-", min_size=1, max_size=12)
base64s = st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode())
urls = st.builds(lambda name: f"https://x.test/{name}.png", ids)
images = st.builds(
    AttachmentPart,
    modality=st.just("image"),
    reference=ids | urls | base64s.map(lambda b: f"data:image/png;base64,{b}"),
)
documents = st.builds(
    AttachmentPart,
    modality=st.just("document"),
    name=st.none() | ids,
    reference=ids
    | ids.map(lambda name: f"https://x.test/{name}.pdf")
    | base64s.map(lambda b: f"data:application/pdf;base64,{b}"),
)
results = st.builds(
    ToolResultPart,
    tool_use_id=ids,
    content=texts | json_values | st.lists(st.builds(lambda t: {"type": "text", "text": t}, texts), max_size=2),
    is_error=st.booleans(),
    name=st.none() | ids,
)
said = st.builds(TextPart, text=texts)
called = st.builds(ToolUsePart, id=ids, name=ids, input=json_maps | json_values)
thought = st.builds(ReasoningPart, text=texts, signature=st.none() | base64s)
parts = {
    "system": said,
    "user": st.one_of(said, images, documents),
    "assistant": st.one_of(said, thought, called),
    "tool": results,
}
likely = st.sampled_from(sorted(parts)).flatmap(
    lambda role: st.builds(
        Message,
        role=st.just(role),
        parts=st.lists(parts[role], min_size=1, max_size=4).map(tuple),
        id=st.uuids().map(str),
    )
)


@pytest.mark.proves("round-trip")
@every_format
@given(conversation=st.lists(likely | messages(), max_size=5))
def test_messages_become_valid_for_the_provider(format_: Format, conversation: list[Message]) -> None:
    losses: list[Loss] = []
    validate(format_.name, format_.to(conversation, on_loss=losses.append))


@pytest.mark.proves("round-trip")
@every_format
@given(conversation=st.lists(likely, max_size=6))
def test_messages_come_back_except_for_reported_losses(format_: Format, conversation: list[Message]) -> None:
    losses: list[Loss] = []
    back = format_.there_and_back(conversation, on_loss=losses.append)
    lost = {(loss.message_id, loss.part) for loss in losses}
    expected, found = turns(conversation, lost), turns(through_storage(back))
    if not lost:
        assert found == expected
    told = [item for _, said in expected for item in said]
    for item in (item for _, said in found for item in said):
        if item in told:
            told.remove(item)
    assert told == [], "not there, and not told"


@every_format
@given(conversation=st.lists(likely | messages(), max_size=5))
def test_a_second_round_trip_changes_nothing(format_: Format, conversation: list[Message]) -> None:
    items = format_.to(conversation, on_loss=lambda loss: None)
    again = format_.from_(items)
    assert format_.to(through_storage(again)) == items


@every_format
@pytest.mark.parametrize("shape", ["valid", "request"])
@given(conversation=st.lists(likely, max_size=3))
def test_requests_are_valid(format_: Format, shape: Any, conversation: list[Message]) -> None:
    validate(format_.name, format_.to(conversation, shape=shape, on_loss=lambda loss: None))


# Messages as providers write them

extras = st.dictionaries(st.sampled_from(["x", "id", "status", "name"]), st.none() | texts, max_size=1)
arguments = st.sampled_from(["{}", '{"a": 1}', '{"a":1,"a":2}', "null", "[1, 2.0]", "not json", ""])


def _mistral() -> st.SearchStrategy[Any]:
    chunk = st.one_of(
        st.builds(lambda t: {"type": "text", "text": t}, texts),
        st.builds(lambda t: {"text": t, "type": "text"}, texts),
        st.builds(lambda u: {"type": "image_url", "image_url": u}, urls | st.builds(lambda u: {"url": u}, urls)),
        st.builds(
            lambda u, n: {"type": "document_url", "document_url": u, **n},
            urls,
            st.sampled_from([{}, {"document_name": "d"}]),
        ),
        st.builds(lambda i: {"type": "file", "file_id": i}, ids),
        st.builds(lambda b: {"type": "input_audio", "input_audio": b}, base64s),
        st.just({"type": "reference", "reference_ids": [1, "b"]}),
        st.builds(
            lambda ts, s: {"type": "thinking", "thinking": [{"type": "text", "text": t} for t in ts], **s},
            st.lists(texts, max_size=2),
            st.sampled_from([{}, {"signature": "c2ln"}, {"closed": True}, {"signature": None}]),
        ),
    )
    content = texts | st.lists(chunk, max_size=3)
    call = st.builds(
        lambda i, n, a: {"id": i, "function": {"name": n, "arguments": a}}, ids, ids, arguments | json_maps
    )
    return st.one_of(
        st.builds(lambda c: {"role": "system", "content": c}, texts),
        st.builds(lambda c: {"role": "user", "content": c}, content | st.none()),
        st.builds(
            lambda c, t, p: {"role": "assistant", **c, **t, **p},
            st.builds(lambda c: {"content": c}, content | st.none()) | st.just({}),
            st.builds(lambda t: {"tool_calls": t}, st.lists(call, max_size=2) | st.none()) | st.just({}),
            st.sampled_from([{}, {"prefix": True}]),
        ),
        st.builds(
            lambda c, i: {"role": "tool", "content": c, **i},
            content | st.none(),
            st.sampled_from([{}, {"tool_call_id": "c"}, {"tool_call_id": None}, {"name": "f", "tool_call_id": "c"}]),
        ),
    )


def _responses() -> st.SearchStrategy[Any]:
    user_block = st.one_of(
        st.builds(lambda t: {"type": "input_text", "text": t}, texts),
        st.builds(
            lambda u, d: {"type": "input_image", "image_url": u, "detail": d}, urls, st.sampled_from(["low", "auto"])
        ),
        st.builds(lambda i: {"type": "input_image", "file_id": i, "detail": "high"}, ids),
        st.builds(lambda i: {"type": "input_file", "file_id": i}, ids),
        st.builds(lambda u: {"type": "input_file", "file_url": u}, urls),
        st.builds(lambda b: {"type": "input_file", "filename": "a.pdf", "file_data": b}, base64s),
    )
    out_block = st.one_of(
        st.builds(lambda t: {"type": "output_text", "text": t, "annotations": []}, texts),
        st.builds(
            lambda t: {
                "annotations": [
                    {"type": "url_citation", "url": "https://x.test", "title": t, "start_index": 0, "end_index": 1}
                ],
                "text": t,
                "type": "output_text",
                "logprobs": [],
            },
            texts,
        ),
        st.builds(lambda t: {"type": "refusal", "refusal": t}, texts),
    )
    state = st.sampled_from([{}, {"status": "completed"}, {"id": "x_1"}])
    return st.one_of(
        st.builds(
            lambda r, c, t: {**t, "role": r, "content": c},
            st.sampled_from(["user", "system", "developer"]),
            texts | st.lists(user_block, max_size=3),
            st.sampled_from([{}, {"type": "message"}]),
        ),
        st.builds(lambda c: {"role": "assistant", "content": c}, texts),
        st.builds(
            lambda i, c: {"id": i, "content": c, "role": "assistant", "status": "completed", "type": "message"},
            ids,
            st.lists(out_block, max_size=3),
        ),
        st.builds(
            lambda i, n, a, s: {"type": "function_call", "call_id": i, "name": n, "arguments": a, **s},
            ids,
            ids,
            arguments,
            state,
        ),
        st.builds(
            lambda i, c, s: {"type": "function_call_output", "call_id": i, "output": c, **s},
            ids,
            texts | st.lists(user_block, max_size=2),
            state,
        ),
        st.builds(lambda i, n, t: {"type": "custom_tool_call", "call_id": i, "name": n, "input": t}, ids, ids, texts),
        st.builds(lambda i, t: {"type": "custom_tool_call_output", "call_id": i, "output": t}, ids, texts),
        st.builds(
            lambda i, ts, e, c: {
                "id": i,
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": t} for t in ts],
                **e,
                **c,
            },
            ids,
            st.lists(texts, max_size=2),
            st.sampled_from([{}, {"encrypted_content": "c2ln"}, {"encrypted_content": None}, {"status": "completed"}]),
            st.sampled_from([{}, {"content": [{"type": "reasoning_text", "text": "hm"}]}]),
        ),
        st.just({"type": "item_reference", "id": "i"}),
        st.just(
            {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}
        ),
    )


def _gemini() -> st.SearchStrategy[Any]:
    signed = st.sampled_from([{}, {"thought_signature": "c2ln"}, {"thought_signature": b"sig"}])
    part = st.one_of(
        st.builds(lambda t, s: {"text": t, **s}, texts, signed),
        st.builds(lambda t, s: {"thought": True, "text": t, **s}, texts, signed),
        st.builds(
            lambda n, a, i, s: {"function_call": {"name": n, "args": a, **i}, **s},
            ids,
            json_maps,
            st.sampled_from([{}, {"id": "c"}, {"id": None}]),
            signed,
        ),
        st.builds(lambda n: {"functionCall": {"name": n}}, ids),
        st.builds(
            lambda n, r, i: {"function_response": {**i, "name": n, "response": r}},
            ids,
            json_maps | st.builds(lambda k, v: {k: v}, st.sampled_from(["output", "error"]), json_values),
            st.sampled_from([{}, {"id": "c"}]),
        ),
        st.builds(lambda b: {"inlineData": {"mimeType": "image/png", "data": b}}, base64s),
        st.builds(lambda b: {"inline_data": {"mime_type": "audio/wav", "data": b}}, st.binary(max_size=5) | base64s),
        st.builds(lambda u: {"file_data": {"file_uri": u, "mime_type": "application/pdf"}}, urls),
        st.builds(
            lambda u: {"fileData": {"fileUri": u, "mimeType": "video/mp4"}, "videoMetadata": {"startOffset": "1s"}},
            urls,
        ),
        st.just({"executable_code": {"code": "1", "language": "PYTHON"}}),
        st.just({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}),
    )
    return st.builds(
        lambda r, p: {**r, "parts": p},
        st.sampled_from([{"role": "user"}, {"role": "model"}, {}, {"role": "function"}]),
        st.lists(part, max_size=3),
    )


def _anthropic() -> st.SearchStrategy[Any]:
    flags = st.dictionaries(st.sampled_from(["is_error", "cache_control", "x"]), st.none() | texts, max_size=2)
    block = st.one_of(
        st.builds(lambda t, e: {"type": "text", "text": t, **e}, texts, flags),
        st.builds(lambda t, e: {**e, "signature": t, "thinking": t, "type": "thinking"}, texts, flags),
        st.builds(lambda t, e: {"type": "tool_use", "id": t, "name": t, "input": {t: [t]}, **e}, texts, flags),
        st.builds(lambda t, e: {"type": "tool_result", "tool_use_id": t, **e}, texts, flags),
        st.builds(lambda t, e: {"type": "tool_result", "tool_use_id": t, "content": t, **e}, texts, flags),
        st.builds(lambda t, e: {"type": t, **e}, texts, flags),
    )
    return st.builds(
        lambda r, c, e: {"role": r, "content": c, **e},
        st.sampled_from(["user", "assistant", "system"]),
        texts | st.lists(block, max_size=3),
        flags,
    )


def _chat() -> st.SearchStrategy[Any]:
    extra = st.dictionaries(st.sampled_from(["extra", "audio", "x"]), st.none() | texts | st.lists(texts), max_size=2)
    block = st.one_of(
        st.builds(lambda t: {"type": "text", "text": t}, texts),
        st.builds(lambda t: {"text": t, "type": "text", "x": 1}, texts),
        st.builds(lambda t: {"type": "image_url", "image_url": {"url": t}}, texts),
        st.builds(lambda t, n: {"type": t, "value": n}, texts, texts),
    )
    function = st.builds(lambda n, a: {"name": n, "arguments": a}, texts, texts | arguments)
    call = st.builds(lambda i, f: {"id": i, "type": "function", "function": f}, texts, function)
    return st.one_of(
        st.builds(
            lambda r, c, e: {"role": r, "content": c, **e},
            st.sampled_from(["user", "system", "exit"]),
            texts | st.none() | st.lists(block, max_size=3),
            extra,
        ),
        st.builds(
            lambda c, t, e: {**e, "content": c, "role": "assistant", "tool_calls": t},
            texts | st.none(),
            st.lists(call, min_size=1, max_size=3),
            extra,
        ),
        st.builds(
            lambda i, c: {"role": "tool", "tool_call_id": i, "content": c}, texts, texts | st.lists(block, max_size=2)
        ),
    )


THEIRS = {
    "anthropic": _anthropic(),
    "gemini": _gemini(),
    "mistral": _mistral(),
    "openai_chat": _chat(),
    "openai_responses": _responses(),
}


@pytest.mark.proves("round-trip")
@every_format
@given(data=st.data())
def test_messages_of_a_provider_come_back(format_: Format, data: Any) -> None:
    format_.restored(data.draw(st.lists(THEIRS[format_.name], max_size=5)))

"""Any valid messages, to each provider and back; and anything a provider may say, to messages and back."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import AttachmentPart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from redis_history.formats import Loss
from tests.property.strategies import json_maps, json_values, messages, texts
from tests.support.sdk import validate
from tests.unit.format_cases import Format, every_format, through_storage, turns

ids = st.just("c") | st.text("abcXYZ019_-", min_size=1, max_size=12)  # ids repeat in real conversations
names = st.none() | ids  # of files
base64s = st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode())
urls = st.builds(lambda name: f"https://x.test/{name}.png", ids)


def attachments(modality: str, mime_type: str, ending: str) -> st.SearchStrategy[AttachmentPart]:
    there = ids.map(lambda name: f"https://x.test/{name}.{ending}")
    data = base64s.map(lambda encoded: f"data:{mime_type};base64,{encoded}")
    return st.builds(AttachmentPart, modality=st.just(modality), name=names, reference=ids | there | data)


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
    "user": st.one_of(
        said,
        attachments("image", "image/png", "png"),
        attachments("audio", "audio/wav", "wav"),
        attachments("document", "application/pdf", "pdf"),
    ),
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
    for shape in ("valid", "request"):
        validate(format_.name, format_.to(conversation, shape=shape, on_loss=lambda loss: None))


@pytest.mark.proves("round-trip")
@every_format
@given(conversation=st.lists(likely, max_size=6))
@pytest.mark.full
def test_messages_come_back_except_for_reported_losses(format_: Format, conversation: list[Message]) -> None:
    losses: list[Loss] = []
    back = format_.there_and_back(conversation, on_loss=losses.append)
    lost = {(loss.message_id, loss.part) for loss in losses}
    expected, found = turns(conversation, lost), turns(through_storage(back))
    if not lost:
        assert found == expected
    missing = [item for _, said in expected for item in said]
    for item in (item for _, said in found for item in said):
        if item in missing:
            missing.remove(item)
    assert missing == [], "lost, and not reported"


@every_format
@given(conversation=st.lists(likely | messages(), max_size=5))
def test_a_second_round_trip_changes_nothing(format_: Format, conversation: list[Message]) -> None:
    items = format_.to(conversation, on_loss=lambda loss: None)
    again = format_.from_(items)
    assert format_.to(through_storage(again)) == items


# Messages as providers write them


def d(optional: Any = None, /, **keys: Any) -> st.SearchStrategy[Any]:
    """Dicts with these keys in this order, and some of `optional`. Values that are not strategies are fixed."""

    def strategies(values: Any) -> Any:
        return {key: v if isinstance(v, st.SearchStrategy) else st.just(v) for key, v in values.items()}

    return st.fixed_dictionaries(strategies(keys), optional=strategies(optional or {}))


def some(strategy: st.SearchStrategy[Any], most: int = 3, least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=least, max_size=most)


nothing = st.none()
arguments = st.sampled_from(["{}", '{"a": 1}', '{"a":1,"a":2}', "null", "[1, 2.0]", "not json", ""])
text = d(type="text", text=texts) | d(text=texts, type="text")


def _anthropic() -> st.SearchStrategy[Any]:
    flags = {"is_error": nothing | texts, "cache_control": nothing | texts, "x": nothing | texts}
    block = st.one_of(
        d(flags, type="text", text=texts),
        d(flags, signature=texts, thinking=texts, type="thinking"),
        d(flags, type="tool_use", id=texts, name=texts, input=json_maps),
        d(flags, type="tool_result", tool_use_id=texts),
        d(flags, type="tool_result", tool_use_id=texts, content=texts),
        d(flags, type=texts),
    )
    return d(flags, role=st.sampled_from(["user", "assistant", "system"]), content=texts | some(block))


def _gemini() -> st.SearchStrategy[Any]:
    signed = {"thought_signature": st.sampled_from(["c2ln", b"sig"])}
    answer = json_maps | d(output=json_values) | d(error=json_values)
    part = st.one_of(
        d(signed, text=texts),
        d(signed, thought=True, text=texts),
        d(signed, function_call=d({"id": nothing | ids}, name=ids, args=json_maps)),
        d(functionCall=d(name=ids)),
        d(function_response=d({"id": ids}, name=ids, response=answer)),
        d(inlineData=d(mimeType="image/png", data=base64s)),
        d(inline_data=d(mime_type="audio/wav", data=st.binary(max_size=5) | base64s)),
        d(file_data=d(file_uri=urls, mime_type="application/pdf")),
        d(fileData=d(fileUri=urls, mimeType="video/mp4"), videoMetadata=d(startOffset="1s")),
        d(executable_code={"code": "1", "language": "PYTHON"}),
        d(codeExecutionResult={"outcome": "OUTCOME_OK", "output": "1"}),
    )
    return d({"role": st.sampled_from(["user", "model", "function"])}, parts=some(part))


def _mistral() -> st.SearchStrategy[Any]:
    signed = {"signature": st.sampled_from(["c2ln", None]), "closed": True}
    chunk = st.one_of(
        text,
        d(type="image_url", image_url=urls | d(url=urls)),
        d({"document_name": "d"}, type="document_url", document_url=urls),
        d(type="file", file_id=ids),
        d(type="input_audio", input_audio=base64s),
        d(type="reference", reference_ids=[1, "b"]),
        d(signed, type="thinking", thinking=some(d(type="text", text=texts), 2)),
    )
    content = nothing | texts | some(chunk)
    calls = some(d(id=ids, function=d(name=ids, arguments=arguments | json_maps)), 2)
    return st.one_of(
        d(role="system", content=texts),
        d(role="user", content=content),
        d({"content": content, "tool_calls": calls | nothing, "prefix": True}, role="assistant"),
        d({"tool_call_id": st.sampled_from(["c", None]), "name": "f"}, role="tool", content=content),
    )


def _chat() -> st.SearchStrategy[Any]:
    extra = {key: nothing | texts | st.lists(texts) for key in ("extra", "audio", "x")}
    block = st.one_of(
        text, d(text=texts, type="text", x=1), d(type="image_url", image_url=d(url=texts)), d(type=texts, value=texts)
    )
    call = d(id=texts, type="function", function=d(name=texts, arguments=texts | arguments))
    return st.one_of(
        d(extra, role=st.sampled_from(["user", "system", "exit"]), content=texts | nothing | some(block)),
        d(extra, content=texts | nothing, role="assistant", tool_calls=some(call, least=1)),
        d(role="tool", tool_call_id=texts, content=texts | some(block, 2)),
    )


def _responses() -> st.SearchStrategy[Any]:
    citation = {"type": "url_citation", "url": "https://x.test", "title": "t", "start_index": 0, "end_index": 1}
    user_block = st.one_of(
        d(type="input_text", text=texts),
        d(type="input_image", image_url=urls, detail=st.sampled_from(["low", "auto"])),
        d(type="input_image", file_id=ids, detail="high"),
        d(type="input_file", file_id=ids),
        d(type="input_file", file_url=urls),
        d(type="input_file", filename="a.pdf", file_data=base64s),
    )
    out_block = st.one_of(
        d(type="output_text", text=texts, annotations=[]),
        d(annotations=[citation], text=texts, type="output_text", logprobs=[]),
        d(type="refusal", refusal=texts),
    )
    state = {"status": "completed", "id": "x_1"}
    roles = st.sampled_from(["user", "system", "developer"])
    reasoning = {
        "encrypted_content": st.sampled_from(["c2ln", None]),
        "status": "completed",
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    custom = ids.map("custom {}".format)  # a result of another kind than its call is corrected
    return st.one_of(
        d({"type": "message"}, role=roles, content=texts | some(user_block)),
        d(role="assistant", content=texts),
        d(id=ids, content=some(out_block), role="assistant", status="completed", type="message"),
        d(state, type="function_call", call_id=ids, name=ids, arguments=arguments),
        d(state, type="function_call_output", call_id=ids, output=texts | some(user_block, 2)),
        d(type="custom_tool_call", call_id=custom, name=ids, input=texts),
        d(type="custom_tool_call_output", call_id=custom, output=texts),
        d(reasoning, id=ids, type="reasoning", summary=some(d(type="summary_text", text=texts), 2)),
        d(type="item_reference", id="i"),
        d(type="web_search_call", id="w", status="completed", action={"type": "search", "query": "q"}),
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

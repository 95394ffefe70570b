"""Requests are valid: objects of SDKs and their keys, base64, blank texts, masks, redactions and denied calls."""

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import (
    AttachmentPart,
    History,
    HistoryStore,
    Message,
    assistant,
    formats,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.agents.history.masking import tool_result_masking
from redis_history.formats.bedrock import from_bedrock, to_bedrock
from redis_history.values.pairs import open_calls
from tests.support.sdk import validate
from tests.unit.format_cases import FORMAT, FORMATS, every_format, through_storage

BYTES = bytes(range(250, 256)) * 4  # whose base64 differs between the two alphabets
STANDARD, SAFE = base64.b64encode(BYTES).decode(), base64.urlsafe_b64encode(BYTES).decode()


# Objects of SDKs


def anthropic_reply() -> list[Any]:
    from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock

    content = [
        ThinkingBlock(type="thinking", thinking="hm", signature="c2ln"),
        TextBlock(type="text", text="I look."),
        ToolUseBlock(type="tool_use", id="c", name="f", input={"a": 1}),
    ]
    return [{"role": "assistant", "content": content}]


def openai_chat_reply() -> list[Any]:
    from openai.types.chat import ChatCompletionMessageFunctionToolCall as Call

    call = Call(id="c", type="function", function={"name": "f", "arguments": '{"a":1}'})  # type: ignore[arg-type]
    return [{"role": "assistant", "content": "I look.", "tool_calls": [call]}]


def mistral_reply() -> list[Any]:
    from mistralai.client.models import FunctionCall, TextChunk, ToolCall

    call = ToolCall(id="c", function=FunctionCall(name="f", arguments={"a": 1}))
    return [{"role": "assistant", "content": [TextChunk(text="I look.")], "tool_calls": [call]}]


def openai_responses_reply() -> list[Any]:
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputText

    said = ResponseOutputText(type="output_text", text="I look.", annotations=[])
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [said]}
    return [message, ResponseFunctionToolCall(type="function_call", call_id="c", name="f", arguments='{"a":1}')]


def gemini_reply() -> list[Any]:
    from google.genai.types import FunctionCall, Part

    return [
        {"role": "model", "parts": [Part(text="I look."), {"function_call": FunctionCall(name="f", args={"a": 1})}]}
    ]


@every_format
def test_objects_of_an_sdk_inside_dicts_are_read_like_dicts(format_):
    given = globals()[f"{format_.name}_reply"]()
    messages = through_storage(format_.from_(given))
    assert [message.text for message in messages] == ["I look."]
    assert [(call.name, call.input) for message in messages for call in message.tool_uses] == [("f", {"a": 1})]
    for shape in ("valid", "original", "request"):
        items = format_.to(messages, shape=shape, on_loss=pytest.fail)
        validate(format_.name, items)
        assert format_.from_(items)[0].tool_uses[0].input == {"a": 1}


@every_format
def test_what_an_sdk_parsed_is_not_sent(format_):
    """`parse` adds a second form of the content, which the SDK itself never sends."""
    messages = through_storage(format_.from_(PARSED[format_.name]))
    for shape in ("valid", "request"):
        items = format_.to(messages, shape=shape, on_loss=pytest.fail)
        validate(format_.name, items)
        assert "Oslo!" not in json.dumps(items)
    assert format_.to(messages, shape="original") == PARSED[format_.name]


ARGUMENTS = {"name": "f", "arguments": "{}"}
PARSED: dict[str, Any] = {
    "anthropic": [{"role": "assistant", "content": [{"type": "text", "text": "O", "parsed_output": {"c": "Oslo!"}}]}],
    "gemini": [{"role": "model", "parts": [{"text": "O"}]}],
    "mistral": [{"role": "assistant", "content": "O", "parsed": {"c": "Oslo!"}}],
    "openai_chat": [
        {
            "role": "assistant",
            "content": "O",
            "tool_calls": [{"id": "c", "type": "function", "function": {**ARGUMENTS, "parsed_arguments": "Oslo!"}}],
            "audio": {"id": "a", "data": "T3Nsbw==", "expires_at": 1, "transcript": "Oslo!"},
            "parsed": {"c": "Oslo!"},
        }
    ],
    "openai_responses": [
        {"type": "function_call", "call_id": "c", **ARGUMENTS, "parsed_arguments": {"c": "Oslo!"}},
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "O", "annotations": [], "parsed": {"c": "Oslo!"}}],
        },
    ],
}


def test_a_request_has_no_keys_that_only_replies_have():
    extra = {"index": 0, "provider_specific_fields": None}
    call = {"id": "c", "type": "function", "function": {**ARGUMENTS, "provider_specific_fields": None}, **extra}
    signed = {"google": {"thought_signature": "c2ln"}}
    reply = {"role": "assistant", "content": None, "function_call": None, "audio": None, "annotations": [{"x": 1}]}
    reply["tool_calls"] = [{**call, "extra_content": signed}]
    messages = through_storage(formats.from_openai_chat([reply]))
    assert formats.to_openai_chat(messages) == [reply]
    assert formats.to_openai_chat(messages, shape="request", on_loss=pytest.fail) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": ARGUMENTS, "extra_content": signed}],
        }
    ]
    cited = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None}
    cited |= {"start_char_index": 0, "end_char_index": 1, "file_id": None}
    reply = {"role": "assistant", "content": [{"type": "text", "text": "x", "citations": [cited]}]}
    [sent] = formats.to_anthropic(formats.from_anthropic([reply]), shape="request", on_loss=pytest.fail)
    assert "file_id" not in sent["content"][0]["citations"][0]
    assert formats.to_anthropic(formats.from_anthropic([reply])) == [reply]
    item = {"type": "custom_tool_call_output", "call_id": "c", "output": "x", "status": "completed", "created_by": "u"}
    messages = formats.from_openai_responses([item])
    assert formats.to_openai_responses(messages) == [item]
    assert formats.to_openai_responses(messages, shape="request", on_loss=pytest.fail) == [
        {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}
    ]


# Files


@pytest.mark.proves("round-trip")
@pytest.mark.parametrize("data", [SAFE, SAFE.rstrip("="), STANDARD, BYTES])
@every_format
def test_every_provider_gets_standard_base64_of_gemini(format_, data):
    image = {"inline_data": {"mime_type": "image/png", "data": data}}
    result = {"function_response": {"id": "c", "name": "f", "response": {"output": "see"}, "parts": [image]}}
    call = {"function_call": {"id": "c", "name": "f", "args": {}}}
    theirs = [
        {"role": "user", "parts": [{"text": "see"}, image]},
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [result]},
    ]
    messages = through_storage(FORMAT["gemini"].restored(theirs))
    assert messages[0].parts[1].reference == f"data:image/png;base64,{STANDARD}"
    sent = json.dumps(format_.to(messages, on_loss=lambda loss: None), default=str)
    if format_.name != "gemini":
        assert sent.count(STANDARD) == (1 if format_.name == "openai_chat" else 2)
        assert SAFE.rstrip("=") not in sent
    if format_.name == "openai_chat":  # results cannot contain images in this format
        assert "File: image" in sent


@pytest.mark.parametrize(
    "response", [{"output": "x"}, {"error": "x"}, {"a": 1}, {}, {"output": {"a": 1}}, {"output": []}]
)
@pytest.mark.parametrize("camel", [False, True])
def test_files_in_results_of_gemini_come_back(response, camel):
    data = {"mimeType": "image/png", "data": STANDARD} if camel else {"mime_type": "image/png", "data": STANDARD}
    files = [{"inlineData" if camel else "inline_data": {**data, "displayName" if camel else "display_name": "p.png"}}]
    kind = "functionResponse" if camel else "function_response"
    theirs = [{"role": "user", "parts": [{kind: {"id": "c", "name": "f", "response": response, "parts": files}}]}]
    (message,) = FORMAT["gemini"].restored(theirs)
    if response != {"output": {}}:
        assert [result.tool_use_id for result in message.tool_results] == ["c"]


BLOCKS: list[Any] = [
    {"type": "image", "source_type": "base64", "data": STANDARD, "mime_type": "image/png"},
    {"type": "image", "source_type": "base64", "data": SAFE, "mime_type": "image/png", "metadata": {"a": 1}},
    {"mime_type": "image/png", "type": "image", "base64": STANDARD, "id": "lc_1"},
    {"type": "media", "mime_type": "image/png", "data": STANDARD},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": STANDARD}},
    {"type": "image_url", "image_url": f"data:image/png;base64,{STANDARD}"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{STANDARD}", "detail": "low"}},
    {"type": "input_image", "image_url": f"data:image/png;base64,{STANDARD}"},
]


@every_format
def test_images_of_langchain_reach_every_provider(format_):
    given = [{"type": "human", "data": {"content": [{"type": "text", "text": "see"}, one]}} for one in BLOCKS]
    messages = through_storage(formats.from_langchain(given))
    assert [one["data"]["content"] for one in formats.to_langchain(messages)] == [
        one["data"]["content"] for one in given
    ]
    items = format_.to(messages, shape="request", on_loss=pytest.fail)
    validate(format_.name, items)
    assert [STANDARD in str(item) for item in items] == [True] * len(BLOCKS)
    if format_.name in ("openai_chat", "gemini"):  # results cannot contain files in these formats
        return
    for block in BLOCKS:
        said = [assistant(tool_use("c", "f")), tool({"type": "tool_result", "tool_use_id": "c", "content": [block]})]
        items = format_.to(said, on_loss=pytest.fail)
        validate(format_.name, items)
        assert STANDARD in str(items)
        assert "source_type" not in str(items)


LINES = "\n".join((STANDARD[:16], STANDARD[16:]))
PADDED = base64.b64encode(BYTES[:-1]).decode()
IMAGE_MESSAGES: dict[str, Callable[[str], list[Message]]] = {
    "anthropic": lambda data: formats.from_anthropic(
        [{"role": "user", "content": [{"type": "image", "source": {**_SOURCE, "data": data}}]}]
    ),
    "openai_chat": lambda data: formats.from_openai_chat(
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"{_START}{data}"}}]}]
    ),
    "openai_responses": lambda data: formats.from_openai_responses(
        [{"role": "user", "content": [{"type": "input_image", "detail": "auto", "image_url": f"{_START}{data}"}]}]
    ),
    "mistral": lambda data: formats.from_mistral(
        [{"role": "user", "content": [{"type": "image_url", "image_url": f"{_START}{data}"}]}]
    ),
    "AI SDK": lambda data: formats.from_vercel_ai(
        [{"id": "m", "role": "user", "parts": [{"type": "file", "mediaType": "image/png", "url": f"{_START}{data}"}]}]
    ),
    "LangChain": lambda data: formats.from_langchain(
        [{"type": "human", "data": {"content": [{"type": "image", "base64": data, "mime_type": "image/png"}]}}]
    ),
    "LangChain with a URL": lambda data: formats.from_langchain(
        [{"type": "human", "data": {"content": [{"type": "image_url", "image_url": {"url": f"{_START}{data}"}}]}}]
    ),
    "by hand": lambda data: [user(AttachmentPart(modality="image", reference=f"{_START}{data}"))],
}
_START, _SOURCE = "data:image/png;base64,", {"type": "base64", "media_type": "image/png"}


@pytest.mark.proves("round-trip")
@pytest.mark.parametrize(
    "data", [SAFE, PADDED.rstrip("="), LINES, f"{PADDED}\n"], ids=["URL-safe", "without padding", "lines", "line"]
)
@pytest.mark.parametrize("source", IMAGE_MESSAGES)
@every_format
def test_every_provider_gets_standard_base64(format_, source, data):
    messages = through_storage(IMAGE_MESSAGES[source](data))
    [item] = format_.to(messages, shape="request", on_loss=pytest.fail)
    validate(format_.name, [item])
    assert (PADDED if data.startswith(PADDED.rstrip("=")) else STANDARD) in str(item)
    if source == format_.name:
        assert format_.to(messages, shape="original") == format_.to(IMAGE_MESSAGES[source](data), shape="original")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "file", "source_type": "text", "mime_type": "text/plain", "text": "the notes"},
        {"type": "text-plain", "mime_type": "text/plain", "text": "the notes", "title": "a"},
        {"type": "text", "source_type": "text", "text": "the notes"},
    ],
    ids=lambda block: block["type"],
)
@every_format
def test_every_provider_gets_the_texts_of_langchain(format_, block):
    given = [{"type": "human", "data": {"content": [{"type": "text", "text": "see"}, block], "type": "human"}}]
    messages = through_storage(formats.from_langchain(given))
    assert formats.to_langchain(messages) == given
    items = format_.to(messages, shape="request", on_loss=pytest.fail)
    validate(format_.name, items)
    assert "the notes" in str(items)


LONG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0" + random.Random(1).randbytes(3_000)).decode()
INSIDE: dict[str, Any] = {
    "nested": {"steps": [{"shot": {"type": "image", "data": LONG, "mimeType": "image/png"}, "done": "yes"}]},
    "data URL": {"done": "yes", "screenshot": f"data:image/png;base64,{LONG}"},
    "bare": {"done": "yes", "png": LONG},
    "beside a text": [{"type": "text", "text": "yes"}, {"type": "chart", "png": LONG}],
    "result of MCP": {"content": [{"type": "image", "data": LONG, "mimeType": "image/png"}], "done": "yes"},
}


@pytest.mark.proves("bounds")
@pytest.mark.parametrize("content", INSIDE.values(), ids=INSIDE)
@pytest.mark.parametrize("name", ["anthropic", "mistral", "openai_chat", "openai_responses"])
def test_no_provider_gets_images_inside_values_as_text(name, content):
    losses: list[Any] = []
    said = [user("see"), assistant(tool_use("c", "f")), tool(tool_result("c", content))]
    items = FORMAT[name].to(said, on_loss=losses.append)
    validate(name, items)
    assert LONG not in str(items)
    assert "[image]" in str(items)
    assert "yes" in str(items)
    assert [(loss.message_id, loss.part) for loss in losses] == [(said[2].id, 0)]


def test_gemini_gets_its_own_values_as_they_were_and_no_signatures_of_others():
    response = {"function_response": {"id": "c", "name": "f", "response": {"png": LONG}}}
    own = [{"role": "user", "parts": [response]}]
    assert FORMAT["gemini"].to(FORMAT["gemini"].restored(own)) == own
    found = {"type": "web_search_result", "url": "u", "title": "Porto", "encrypted_content": LONG}
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [found]}
    for form in ("gemini", "openai_chat", "openai_responses", "mistral"):
        messages = formats.from_anthropic([{"role": "assistant", "content": [use, result]}])
        sent = str(FORMAT[form].to(messages, on_loss=pytest.fail))
        assert "Porto" in sent
        assert LONG not in sent


def test_the_result_of_an_edited_call_of_a_custom_tool_is_one_of_a_function():
    items = [
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "print(1)"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "1"},
    ]
    called, result = FORMAT["openai_responses"].restored(items)
    edited = replace(called, parts=(replace(called.parts[0], input={"redacted": True}),))
    sent = FORMAT["openai_responses"].to([edited, result])
    assert [item["type"] for item in sent] == ["function_call", "function_call_output"]
    validate("openai_responses", sent)


def test_an_edited_file_has_nothing_of_the_first():
    for block in BLOCKS:
        (message,) = formats.from_langchain([{"type": "human", "data": {"content": [block]}}])
        edited = replace(message.parts[0], reference="https://x.test/b.png")
        assert STANDARD not in str(edited)
        assert STANDARD not in str(formats.to_langchain([user(edited)]))


# Blank texts


BLANK: dict[str, list[Message]] = {
    "its own": formats.from_anthropic(
        [{"role": "assistant", "content": [{"type": "text", "text": "", "citations": None}]}]
    ),
    "plain": [assistant(text(" \n"))],
    "chat": formats.from_openai_chat([{"role": "assistant", "content": "\n"}]),
    "Responses": formats.from_openai_responses(
        [
            {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "", "annotations": []}],
            }
        ]
    ),
    "empty": [assistant([])],
}


@pytest.mark.parametrize("source", BLANK)
@every_format
def test_a_request_has_no_message_without_content(format_, source):
    said = [user("q"), *BLANK[source], user("go on")]
    items = format_.to(said, shape="request", on_loss=pytest.fail)
    validate(format_.name, items)
    if format_.name in ("anthropic", "gemini") and not (format_.name == "gemini" and source in ("plain", "chat")):
        assert [item["role"] for item in items] == ["user", "user"]
    if format_.name == "mistral" and source == "empty":
        assert len(items) == 2


def test_anthropic_gets_no_blank_blocks_beside_others():
    content = [{"type": "text", "text": " "}, {"type": "text", "text": "rain"}]
    result = {"type": "tool_result", "tool_use_id": "c", "content": content}
    said = [*BLANK["Responses"][0].parts, tool_use("c", "f")], tool(result)
    messages = [assistant(said[0]), said[1]]
    for shape in ("valid", "request"):
        asked, answered = formats.to_anthropic(messages, shape=shape, on_loss=pytest.fail)
        assert [block["type"] for block in asked["content"]] == ["tool_use"]
    assert answered["content"][0]["content"] == content[1:]
    theirs = [{"role": "assistant", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "x"}]}]
    assert formats.to_anthropic(formats.from_anthropic(theirs)) == theirs
    assert formats.to_anthropic(formats.from_anthropic(theirs), shape="request")[0]["content"] == "x"
    blank = {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}
    assert formats.to_anthropic_system(formats.from_anthropic([], system=[blank]), shape="request") is None


# Masks and redactions

OWN_RESULTS: list[dict[str, Any]] = [
    {
        "type": "web_search_tool_result",
        "content": [{"type": "web_search_result", "title": "t", "url": "https://x.test", "encrypted_content": "c2ln"}],
    },
    {
        "type": "code_execution_tool_result",
        "content": {"type": "code_execution_result", "stdout": "x", "stderr": "", "return_code": 0, "content": []},
    },
    {
        "type": "bash_code_execution_tool_result",
        "content": {"type": "bash_code_execution_result", "stdout": "x", "stderr": "", "return_code": 0, "content": []},
    },
    {
        "type": "text_editor_code_execution_tool_result",
        "content": {"type": "text_editor_code_execution_create_result", "is_file_update": False},
    },
    {
        "type": "web_fetch_tool_result",
        "content": {
            "type": "web_fetch_result",
            "url": "https://x.test",
            "content": {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
        },
    },
    {
        "type": "tool_search_tool_result",
        "content": {"type": "tool_search_tool_search_result", "tool_references": []},
    },
]


@pytest.mark.parametrize("result", OWN_RESULTS, ids=lambda one: one["type"])
@pytest.mark.parametrize("instead", ["[redacted]", None, [{"type": "text", "text": "[redacted]"}], {"any": 1}])
def test_an_edited_result_of_a_tool_of_anthropic_is_valid(result, instead):
    theirs = [{"role": "assistant", "content": [{**result, "tool_use_id": "c"}]}]
    validate("anthropic", theirs)
    (message,) = through_storage(FORMAT["anthropic"].restored(theirs))
    edited = replace(message, parts=(replace(message.parts[0], content=instead),))
    losses: list[formats.Loss] = []
    items = formats.to_anthropic([edited], shape="request", on_loss=losses.append)
    validate("anthropic", items)
    assert items[0]["content"][0]["content"]["type"] == f"{result['type']}_error"
    assert len(losses) == 1
    history = History()
    history.use(tool_result_masking(keep_recent_results=0))
    call = {"type": "server_tool_use", "id": "c", "name": "web_search", "input": {}}
    for one in formats.from_anthropic([{"role": "assistant", "content": [call, {**result, "tool_use_id": "c"}]}]):
        history.add_entry(one)
    items = formats.to_anthropic(history.get_entries(), on_loss=lambda loss: None)
    validate("anthropic", items)
    assert items[0]["content"][1]["content"] != result["content"]


SECRET = "Pass-4711"
QUOTING: dict[str, list[Any]] = {
    "openai_responses": [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": SECRET}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": f'{{ "a" :"{SECRET}", "a":"{SECRET}"}}'},
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {
                    "type": "output_text",
                    "text": SECRET,
                    "annotations": [],
                    "logprobs": [{"token": SECRET, "bytes": [], "logprob": 0.0, "top_logprobs": []}],
                }
            ],
        },
    ],
    "openai_chat": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": f'{{ "a":"{SECRET}"}}'}}
            ],
        }
    ],
    "mistral": [
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": [{"type": "text", "text": one} for one in ("x", SECRET)]}],
        }
    ],
    "gemini": [
        {
            "role": "user",
            "parts": [
                {
                    "function_response": {
                        "id": "c",
                        "name": "f",
                        "response": {"output": SECRET},
                        "parts": [{"file_data": {"file_uri": f"gs://{SECRET}"}}],
                    }
                }
            ],
        }
    ],
    "anthropic": [
        {
            "role": "user",
            "content": [
                {
                    "type": "text",
                    "text": SECRET,
                    "citations": [
                        {
                            "type": "char_location",
                            "cited_text": SECRET,
                            "document_index": 0,
                            "document_title": None,
                            "start_char_index": 0,
                            "end_char_index": 1,
                        }
                    ],
                }
            ],
        }
    ],
}


def redacted(part: Any) -> Any:
    for name, value in (("text", "[redacted]"), ("input", {}), ("content", "[redacted]"), ("reference", None)):
        if hasattr(part, name):
            return replace(part, **{name: value})
    raise AssertionError(part)


@every_format
def test_an_edited_part_does_not_bring_back_the_original(format_):
    """The original text is in neither the request nor the store."""
    messages = FORMAT[format_.name].restored(QUOTING[format_.name])
    with HistoryStore("memory://") as store:
        store.append_many("c", messages)
        assert format_.to(store.get("c")) == QUOTING[format_.name]
        for message in store.get("c"):
            store.update_message("c", replace(message, parts=tuple(map(redacted, message.parts))))
        edited = store.get("c")
    assert SECRET not in str(edited)
    for other in FORMATS:
        items = other.to(edited, on_loss=lambda loss: None)
        validate(other.name, items)
        assert SECRET not in str(items)


def test_a_result_that_was_stored_as_text_may_be_masked():
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": {"n": 2**70}}
    messages = formats.from_anthropic([{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}])
    masked = [messages[0], replace(messages[1], parts=(replace(messages[1].parts[0], content="[MASKED - ref: c]"),))]
    assert formats.to_anthropic(masked)[1]["content"][0]["content"] == "[MASKED - ref: c]"


# Denied calls


@every_format
@pytest.mark.parametrize("state", ["output-denied", "approval-responded"])
@pytest.mark.parametrize("reason", [None, "too much"])
def test_a_denied_call_is_visible_to_every_provider(format_, state, reason):
    approval = {"id": "ap", "approved": False, **({"reason": reason} if reason else {})}
    part = {"type": "tool-pay", "toolCallId": "c", "state": state, "input": {"sum": 3}, "approval": approval}
    chat = [{"id": "a", "role": "assistant", "parts": [{"type": "step-start"}, part]}]
    messages = through_storage(formats.from_vercel_ai(chat))
    assert formats.to_vercel_ai(messages) == chat
    (result,) = (one for message in messages for one in message.tool_results)
    assert (result.tool_use_id, result.is_error) == ("c", True)
    assert [calls for _, calls in open_calls(messages) if calls] == []
    sent = str(format_.to(formats.paired(messages, on_loss=pytest.fail), on_loss=lambda loss: None))
    assert "denied" in sent
    assert (reason or "") in sent


def test_a_call_that_was_approved_waits_for_its_result():
    part = {"type": "tool-pay", "toolCallId": "c", "state": "approval-responded", "input": {}}
    chat = [{"id": "a", "role": "assistant", "parts": [{**part, "approval": {"id": "ap", "approved": True}}]}]
    messages = formats.from_vercel_ai(chat)
    assert not any(message.tool_results for message in messages)
    assert formats.to_vercel_ai(messages) == chat


def test_recent_text_has_no_data() -> None:
    files = [
        (AttachmentPart(modality="image", reference="data:image/png;base64,AAAA"), "Image"),
        (AttachmentPart(reference="data:audio/wav;base64,AAAA"), "Audio"),
        (AttachmentPart(reference="data:application/pdf;base64,AAAA"), "File"),
        (AttachmentPart(name="a.png", reference="data:image/png;base64,AAAA"), "File: a.png"),
        (AttachmentPart(reference="https://x.test/a.png"), "File: https://x.test/a.png"),
        (AttachmentPart(), "File: unnamed"),
    ]
    for part, line in files:
        assert History([user(part)]).recent_text(1) == line


def test_recent_text_has_no_base64_of_texts() -> None:
    history = History([user(f"See ![shot](data:image/png;base64,{LONG})"), tool(tool_result("c", f"{LONG} is it"))])
    assert history.recent_text(2) == "User: See ![shot]([image])\nTool: [image] is it"


ENDING = BYTES + b"\xff\xfe"  # whose base64 is padded
ENDED, SAFE_ENDED = base64.b64encode(ENDING).decode(), base64.urlsafe_b64encode(ENDING).decode()
NO_BASE64 = ("not base64", "abcde")


@pytest.mark.parametrize("where", ["file", "result"])
@pytest.mark.parametrize("shape", ["valid", "original"])
@pytest.mark.parametrize(
    "data",
    [
        *(ENDED, ENDED.rstrip("="), f"{ENDED[:20]}\r\n{ENDED[20:]}"),
        *(SAFE_ENDED, SAFE_ENDED.rstrip("="), *NO_BASE64),
    ],
)
def test_bedrock_gets_the_bytes_of_any_base64(data: str, shape: Any, where: str) -> None:
    url = f"data:image/png;base64,{data}"
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    file = AttachmentPart(modality="image", mime_type="image/png", reference=url)
    message = user("See", file) if where == "file" else tool(tool_result("c", [{"type": "text", "text": "See"}, block]))
    losses: list[formats.Loss] = []
    for _ in range(2):  # also after it has been restored from bytes
        [item] = to_bedrock([message], shape=shape, on_loss=losses.append)
        content = item["content"] if where == "file" else item["content"][0]["toolResult"]["content"]
        if data in NO_BASE64:
            assert len(losses) == 1
            assert content[1:] == ([] if where == "file" and shape == "original" else [{"text": "File: image"}])
            return
        assert content[1]["image"]["source"]["bytes"] == ENDING
        [message] = from_bedrock([item])
    assert not losses

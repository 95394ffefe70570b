"""Sizes of provider values, which count as text, as images, or not at all."""

import base64
import json
import os
import time
from typing import Any

import pytest

from redis_history import AttachmentPart, Message, tool_result, tool_use, user
from redis_history.agents.compaction.extractive import extractive_summarizer
from redis_history.agents.compaction.rendering import chunks
from redis_history.formats import (
    from_anthropic,
    from_gemini,
    from_langchain,
    from_openai_chat,
    from_openai_responses,
    from_vercel_ai,
)
from redis_history.values import UnknownPart
from redis_history.values.contents import readable, readable_text, texts_in
from redis_history.values.sizes import MAX_CHARACTERS, MEDIA_TOKENS, count_characters, message_tokens

RAW = os.urandom(60_000)
STANDARD, URL_SAFE = base64.b64encode(RAW).decode(), base64.urlsafe_b64encode(RAW).decode()
SMALL = base64.b64encode(b"\x89PNG").decode()
URL = f"data:image/png;base64,{STANDARD}"
SIGNATURE = base64.b64encode(os.urandom(6_000)).decode()
SENTENCES = " ".join(f"The order {number} was paid in Porto." for number in range(1_000))


def image(data: str) -> list[tuple[str, Any]]:
    """Blocks with one image, as providers and frameworks write them."""
    url = f"data:image/png;base64,{data}"
    return [
        ("Anthropic", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}),
        ("Responses", {"type": "input_image", "image_url": url, "detail": "auto"}),
        ("computer", {"type": "computer_screenshot", "image_url": url}),
        ("chat", {"type": "image_url", "image_url": {"url": url, "detail": "high"}}),
        ("Mistral", {"type": "image_url", "image_url": url}),
        ("Gemini", {"inlineData": {"mimeType": "image/png", "data": data}}),
        ("Gemini, snake", {"inline_data": {"mime_type": "image/png", "data": data}}),
        ("Gemini, file", {"fileData": {"mimeType": "image/png", "fileUri": "gs://bucket/shot"}}),
        ("MCP", {"type": "image", "data": data, "mimeType": "image/png"}),
        ("MCP resource", {"type": "resource", "resource": {"uri": "x://y", "mimeType": "image/png", "blob": data}}),
        ("AI SDK", {"type": "file", "mediaType": "image/png", "url": url}),
        ("AI SDK result", {"type": "media", "mediaType": "image/png", "data": data}),
        ("AI SDK image-data", {"type": "image-data", "data": data, "mediaType": "image/png"}),
        ("LangChain", {"type": "image", "base64": data, "mime_type": "image/png"}),
        ("LangChain, old", {"type": "image", "source_type": "base64", "data": data, "mime_type": "image/png"}),
        ("Pydantic AI", {"kind": "binary", "data": data, "media_type": "image/png"}),
        ("LlamaIndex", {"block_type": "image", "image": data}),
        ("code interpreter", {"type": "image", "url": url}),
        ("generated", {"type": "image_generation_call", "id": "ig", "status": "completed", "result": data}),
        ("a bare data URL", url),
    ]


@pytest.mark.parametrize("data", [STANDARD, URL_SAFE, SMALL], ids=["standard", "URL-safe", "small"])
@pytest.mark.parametrize("name", [name for name, _ in image("")])
def test_an_image_counts_the_same_wherever_it_stands(name: str, data: str) -> None:
    block = dict(image(data))[name]
    alone = message_tokens(user(AttachmentPart(modality="image", reference="https://x/y.png")))
    assert alone == MEDIA_TOKENS["image"]
    for message in (
        user(tool_result("c", [block])),
        user(tool_result("c", {"content": {"items": [block]}})),
        user(tool_use("c", "look", {"at": [block]})),
        user(UnknownPart({"type": "new", "content": [block]})),
    ):
        assert MEDIA_TOKENS["image"] <= message_tokens(message) <= MEDIA_TOKENS["image"] + 60, name
        assert message_tokens(message, len) - 4 * 60 <= MEDIA_TOKENS["image"], "and with a counter"
        assert "".join(chunks([message], 100_000)).count(data) == 0, "a summarizer sees no base64"


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"type": "input_audio", "input_audio": {"data": STANDARD, "format": "wav"}}, MEDIA_TOKENS["audio"]),
        ({"type": "audio", "data": STANDARD, "mimeType": "audio/wav"}, MEDIA_TOKENS["audio"]),
        ({"type": "input_file", "filename": "a.pdf", "file_data": URL}, MEDIA_TOKENS["file"]),
        ({"type": "file", "file": {"file_id": "file-1"}}, MEDIA_TOKENS["file"]),
        ({"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}}, MEDIA_TOKENS["file"]),
        ({"inlineData": {"mimeType": "video/mp4", "data": STANDARD}}, MEDIA_TOKENS["video"]),
        ({"unknown": STANDARD}, MEDIA_TOKENS["data"]),
        ({"unknown": [URL_SAFE]}, MEDIA_TOKENS["data"]),
        ({"log": f"GET /\n{URL}\nthe end"}, MEDIA_TOKENS["image"]),
        (json.dumps({"screenshot": STANDARD}), MEDIA_TOKENS["data"]),
        (f"![chart]({URL})", MEDIA_TOKENS["image"]),
        (base64.b64encode(b"\xff\xd8\xff\xe0" + RAW).decode(), MEDIA_TOKENS["image"]),
        (b"\xff" * 5_000, MEDIA_TOKENS["data"]),
        (base64.encodebytes(RAW).decode(), MEDIA_TOKENS["data"]),
        (f"Subject: a\n\n{base64.encodebytes(b'%PDF-1.7' + RAW).decode()}\n--end", MEDIA_TOKENS["file"]),
        (json.dumps({"blob": base64.encodebytes(RAW).decode()}), MEDIA_TOKENS["data"]),
        ({"blob": base64.encodebytes(RAW).decode().replace("\n", "\r\n")}, MEDIA_TOKENS["data"]),
        ({"type": "thinking", "thinking": "", "signature": SIGNATURE}, 0),
        ({"functionCall": {"name": "f"}, "thoughtSignature": SIGNATURE}, 0),
        ({"type": "reasoning", "summary": [], "encrypted_content": SIGNATURE}, 0),
        ({"type": "redacted_thinking", "data": SIGNATURE}, 0),
        ({"type": "web_search_result", "encrypted_content": SIGNATURE, "title": "A"}, 0),
    ],
)
def test_base64_and_signatures_are_no_text(value: Any, tokens: int) -> None:
    for message in (user(tool_result("c", value)), user(UnknownPart({"type": "new", "value": value}))):
        assert tokens <= message_tokens(message) <= tokens + 60
        text = "".join(chunks([message], 100_000))
        assert STANDARD[100:200] not in text
        assert URL_SAFE[100:200] not in text
        assert SIGNATURE[100:200] not in text


def test_a_short_data_url_counts_the_same_for_every_counter() -> None:
    message = user(f"data:image/png;base64,{SMALL}")
    assert MEDIA_TOKENS["image"] <= message_tokens(message) <= MEDIA_TOKENS["image"] + 3
    assert message_tokens(message, len) == MEDIA_TOKENS["image"] + len("[image]")


@pytest.mark.parametrize(
    "value",
    [
        "x" * 50_000,
        "你好" * 25_000,
        "0123456789abcdef" * 3_000,
        "ACGT" * 12_000,
        "/usr/lib/python3/dist-packages " * 1_500,
        "\n".join(f"{number}_of_many_names" for number in range(3_000)),
        "data: " + "message " * 6_000,
        SENTENCES,
        "\n".join(f"{number:064x}" for number in range(1_000)),
        "\n".join("word" * 16 for _ in range(1_000)),
    ],
    ids=range(10),
)
def test_text_is_text(value: str) -> None:
    assert count_characters(user(value)) == len(value)
    assert count_characters(user(tool_result("c", value))) == len(value)
    whole = json.dumps({"v": value}, ensure_ascii=False, separators=(",", ":"))
    assert count_characters(user(tool_result("c", {"v": value}))) == len(whole)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": SENTENCES}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": SENTENCES}]}},
        {"type": "file", "url": SENTENCES, "path": "a.py"},
        {"type": "resource", "resource": {"uri": "file:///a.md", "mimeType": "text/markdown", "text": SENTENCES}},
        {"signature": SENTENCES},
        {"mimeType": "text/plain", "data": SENTENCES},
    ],
)
def test_texts_that_look_like_files(value: Any) -> None:
    assert count_characters(user(UnknownPart({"type": "new", "value": value}))) > len(SENTENCES)
    assert "order 999" in "\n".join(texts_in(readable(value)[0]))


OPAQUE: list[tuple[str, list[Message]]] = [
    ("mcp_call", from_openai_responses([{"type": "mcp_call", "id": "m", "name": "rows", "output": SENTENCES}])),
    (
        "shell_call_output",
        from_openai_responses(
            [{"type": "shell_call_output", "call_id": "k", "output": [{"stdout": SENTENCES, "stderr": ""}]}]
        ),
    ),
    (
        "code_execution_result",
        from_gemini([{"role": "model", "parts": [{"code_execution_result": {"output": SENTENCES}}]}]),
    ),
    (
        "code_execution_tool_result",
        from_anthropic(
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "server_tool_use", "id": "s", "name": "code_execution", "input": {}},
                        {
                            "type": "code_execution_tool_result",
                            "tool_use_id": "s",
                            "content": {"type": "code_execution_result", "stdout": SENTENCES, "content": []},
                        },
                    ],
                }
            ]
        ),
    ),
    ("chat", from_openai_chat([{"role": "user", "content": [{"type": "text", "text": SENTENCES}]}])),
    ("LangChain", from_langchain([{"type": "tool", "data": {"content": SENTENCES, "tool_call_id": "c"}}])),
    ("AI SDK", from_vercel_ai([{"id": "m", "role": "assistant", "parts": [{"type": "data-x", "data": SENTENCES}]}])),
]


@pytest.mark.parametrize(("name", "messages"), OPAQUE, ids=[name for name, _ in OPAQUE])
def test_texts_of_all_items_count_and_are_summarized(name: str, messages: list[Message]) -> None:
    assert sum(map(count_characters, messages)) == pytest.approx(len(SENTENCES), rel=0.05)
    assert "order 1 was paid" in "".join(chunks(messages, 100_000))
    assert "was paid in Porto" in extractive_summarizer()(messages)


def test_images_beside_a_result_of_gemini_count() -> None:
    blob = {"inlineData": {"mimeType": "image/png", "data": STANDARD}}
    response = {"id": "1", "name": "shot", "response": {"ok": True}, "parts": [blob, blob]}
    [message] = from_gemini([{"role": "user", "parts": [{"functionResponse": response}]}])
    assert 2 * MEDIA_TOKENS["image"] <= message_tokens(message) <= 2 * MEDIA_TOKENS["image"] + 100


def test_a_size_has_a_bound() -> None:
    images = [{"type": "image", "data": SMALL, "mimeType": "image/png"}] * 20_000
    assert count_characters(user(tool_result("c", images))) == MAX_CHARACTERS


@pytest.mark.parametrize(
    "text",
    [
        ("A1b" * 341 + " ") * 1_000 + "A" * 1_100,
        ("A1b" * 341 + ".") * 1_000 + "A" * 1_100,
        "data:" * 200_000 + ";base64,",
        "data:a/b;c;c;c;c;c;c;c;c" * 40_000 + ";base64,",
        "data:" + "a" * 1_000_000 + ";base64,",
        "=" * 1_000_000,
        STANDARD * 12,
    ],
    ids=range(7),
)
def test_sizes_take_linear_time(text: str) -> None:
    def seconds(times: int) -> float:
        part, best = text[: len(text) // 8] * times, float("inf")
        for _ in range(3):
            started = time.process_time()
            readable_text(part)
            best = min(best, time.process_time() - started)
        return best

    assert seconds(8) < 40 * seconds(1) + 0.05


def test_a_plain_value_is_returned_itself() -> None:
    value = {"rows": [{"a": 1, "b": "text", "c": [None, 1.5]}] * 10}
    assert readable(value) == (value, [])
    assert readable(value)[0] is value

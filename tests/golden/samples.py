"""The messages behind the golden files. A file maps the name of a sample to the hex of its member.

`messages_v1.json` is what schema version 1 writes. It changes only with the schema version: stored messages do not
change with the code, and a body written today must have the bytes of one written before, or a retry is a conflict.
`messages_v2.json` is what a version 2 might write, with fields and parts that version 1 does not know, everywhere.

    python -m tests.golden.samples 1      writes the file of version 1 anew; only together with a new SCHEMA_VERSION
    python -m tests.golden.samples 2      the same for the made-up version 2
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from redis_history.model import (
    AttachmentPart,
    Message,
    Participant,
    ReasoningPart,
    Source,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from redis_history.model.wire import encode_body, encode_member, placed

__all__ = ["PLACES", "VERSION_1", "VERSION_2", "expected", "read"]

_FOLDER = Path(__file__).parent
_META = {"anthropic": {"cache_control": {"type": "ephemeral"}, "index": 3}}

VERSION_1: dict[str, Message] = {
    "smallest": Message(role="user", id="m-1"),
    "plain": Message(
        role="user",
        id="0190a7f0-5a5b-7c3e-8f3a-0123456789ab",
        parts=(TextPart("Hello, wörld — 你好 👋"),),
        participant=Participant("user", "u-1", "Ann"),
        scope="channel",
    ),
    "every part": Message(
        role="assistant",
        id="m-2",
        parts=(
            TextPart("Let me look.", provider_meta=_META),
            ReasoningPart("First …", signature="EqQBCgIYAh==", provider_meta=_META),
            ToolUsePart("call-1", "search", {"z": 1, "a": [None, True, 2.5, -7, "x", {}], "q": "ü"}, _META),
            ToolUsePart("call-2", "broken", '{"q": '),
            ToolUsePart("call-3", "no_arguments"),
            AttachmentPart("f-1", "report.pdf", 12345, "document", "application/pdf", "s3://bucket/report.pdf", _META),
            AttachmentPart(),
        ),
        participant=Participant("agent", "planner"),
    ),
    "tool results": Message(
        role="tool",
        id="m-3",
        parts=(
            ToolResultPart("call-1", [{"type": "text", "text": "found"}, {"type": "image", "data": b"\x00\xff"}]),
            ToolResultPart("call-2", "no such tool", True, "broken", _META),
            ToolResultPart("call-3"),
        ),
    ),
    "every field": Message(
        role="system",
        id="m-4",
        parts=(TextPart(""), TextPart("line\nline")),
        participant=Participant("system", "compressor", "Compressor"),
        scope="thread",
        metadata={
            "channel_type": "slack",
            "channel_name": "general",
            "channel_id": "C1",
            "thread_id": "t-1",
            "platform_message_id": "1700000000.000100",
            "mentions": ["u-1", "planner"],
            "is_summary": True,
            "free": {"b": 1, "a": 2**63, "when": datetime(2026, 1, 31, 12, tzinfo=UTC)},
        },
        sources=(Source("d-1", "Manual", "chunk 7", 0.75), Source(document_id="d-2"), Source()),
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        provider_meta={"openai": {"id": "chatcmpl-1", "logprobs": None}},
    ),
}

_BASE = {"id": "m-1", "role": "assistant", "schema_version": 2}
VERSION_2: dict[str, dict[str, Any]] = {
    "message": {
        **_BASE,
        "parts": [{"type": "text", "text": "Hello"}],
        "priority": 5,
        "extra": {"nested": [1, {"a": None}]},
        "empty": None,
        "list": [],
    },
    "no parts": {**_BASE, "language": "en"},
    "new part": {
        **_BASE,
        "parts": [
            {"type": "text", "text": "before"},
            {"type": "hologram", "shape": {"vertices": [1.5, -2.0]}, "data": {"type": "text"}, "bytes": b"\x00\x01"},
            {"type": "hologram"},
            {"type": "text", "text": "after"},
        ],
    },
    "parts": {
        **_BASE,
        "parts": [
            {"type": "text", "text": "t", "annotations": [{"start": 0}]},
            {"type": "reasoning", "text": "r", "signature": "s", "effort": "high"},
            {"type": "tool_use", "id": "c", "name": "n", "input": {"b": 1, "a": 2}, "parallel": True},
            {"type": "tool_result", "tool_use_id": "c", "content": [1, "x"], "duration": 0.25, "extra": "mine"},
            {"type": "attachment", "name": "a.png", "size": 7, "sha256": b"\x01" * 32, "provider_meta": {"p": 1}},
        ],
    },
    "participant": {**_BASE, "participant": {"kind": "agent", "id": "a", "display_name": "A", "avatar": {"url": "u"}}},
    "sources": {
        **_BASE,
        "sources": [{"document_id": "d", "page": 3}, {"score": 0.5}, {"embedding": [0.5, -1.0]}],
    },
    "everything": {
        **_BASE,
        "parts": [{"type": "poll", "options": ["a", "b"]}, {"type": "text", "text": "t", "lang": "de"}],
        "participant": {"kind": "user", "id": "u", "team": "red"},
        "scope": "dm",
        "metadata": {"channel_id": "C", "whatever": {"deep": [[[]]]}},
        "sources": [{"chunk": "c", "rank": 1}],
        "trace_id": "t",
        "provider_meta": {"x": {"y": 1}},
        "reactions": {"👍": ["u-1"]},
        "edited_at": datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
    },
}

#: Sequence and timestamp of the samples, in turn.
PLACES = [(1, 0), (2, 1_767_225_600_000_001), (2**40, -1), (4, 2**53 - 1), (5, 1 - 2**53)]


def read(version: int) -> dict[str, bytes]:
    """The members in the golden file of a schema version."""
    text = (_FOLDER / f"messages_v{version}.json").read_text(encoding="utf-8")
    return {name: bytes.fromhex(member) for name, member in json.loads(text).items()}


def _made(version: int) -> dict[str, bytes]:
    bodies = (
        {name: encode_body(message) for name, message in VERSION_1.items()}
        if version == 1
        else {name: msgspec.msgpack.encode(fields) for name, fields in VERSION_2.items()}
    )
    return {
        name: encode_member(*PLACES[index % len(PLACES)], body) for index, (name, body) in enumerate(bodies.items())
    }


def expected() -> dict[str, Message]:
    """The messages in the file of version 1."""
    return {name: placed(message, *PLACES[i % len(PLACES)]) for i, (name, message) in enumerate(VERSION_1.items())}


if __name__ == "__main__":
    chosen = int(sys.argv[1])
    path = _FOLDER / f"messages_v{chosen}.json"
    made = {name: member.hex() for name, member in _made(chosen).items()}
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")

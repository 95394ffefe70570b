"""The messages behind the golden files. A file maps the name of a sample to the hex of its member.

The file never changes: a message written today must have the bytes of one written before, or a retry is a conflict.

    python -m tests.golden.samples      writes members.json anew, after a sample was added
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from redis_history.values import (
    AttachmentPart,
    Message,
    Participant,
    ReasoningPart,
    Source,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    Usage,
)
from redis_history.values.wire import FREE_FORM, encode_member, placed
from tests.support.members import member_of

__all__ = ["SAMPLES", "UNKNOWN", "expected", "read"]

_FILE = Path(__file__).with_name("members.json")
_META = {"anthropic": {"cache_control": {"type": "ephemeral"}, "index": 3}}

SAMPLES: dict[str, Message] = {
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
    "usage": Message(
        role="assistant", id="m-5", parts=(TextPart("Hello"),), usage=Usage(1200, 80, 1000, 0.0125, "model-1")
    ),
}

_TEXT = [1, "Hello"]
_NO_FIELDS: list[Any] = [None, None, {}, [], None, {}, "complete"]
#: Arrays from the id on, with unknown fields by name and unknown parts.
UNKNOWN: dict[str, list[Any]] = {
    "fields": ["m-1", "assistant", [_TEXT], *_NO_FIELDS, {"priority": 5, "extra": {"nested": [1, {"a": None}]}}],
    "parts": ["m-1", "assistant", [_TEXT, [0, {"type": "poll"}], [1, "t", None, {"lang": "de"}]]],
    "participant": ["m-1", "user", [], ["agent", "a", "A", {"team": "red"}]],
    "sources": ["m-1", "user", [], None, None, {}, [[None, None, None, 0.5, {"page": 3}]]],
}

#: Sequence and timestamp of the samples, in turn.
_PLACES = [(1, 0), (2, 1_767_225_600_000_001), (2**32 - 1, -1), (4, 2**53 - 1), (5, 1 - 2**53), (6, 0)]


def read() -> dict[str, bytes]:
    """The members in the golden file."""
    return {name: bytes.fromhex(member) for name, member in json.loads(_FILE.read_text(encoding="utf-8")).items()}


def expected() -> dict[str, Message]:
    """The samples, at their places in the golden file."""
    return {name: placed(message, *place) for (name, message), place in zip(SAMPLES.items(), _PLACES, strict=True)}


def _made() -> dict[str, bytes]:
    made = {name: member_of(message, *place) for (name, message), place in zip(SAMPLES.items(), _PLACES, strict=True)}
    for name, row in UNKNOWN.items():
        encoded = msgspec.msgpack.encode([0, None, *row])
        made[name] = encode_member(7, 5, FREE_FORM, 0, encoded[:1] + encoded[3:])
    return made


if __name__ == "__main__":
    made = {name: member.hex() for name, member in _made().items()}
    _FILE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")

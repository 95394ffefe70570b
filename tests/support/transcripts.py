"""Transcripts for tests: the bundled samples, and those in the folder $REDIS_HISTORY_DATA."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from redis_history.formats import from_anthropic, from_openai_chat
from redis_history.integrations.importers import Transcript, Turn, build
from redis_history.values import AttachmentPart, Message, Participant, TextPart

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
#: Real transcripts, which are not part of the project.
REAL = sorted(Path(folder).glob("*.json*")) if (folder := os.environ.get("REDIS_HISTORY_DATA")) else []
FILES = [*SAMPLES, *REAL]
_CONTENT = {"role", "text", "message"}  # every message has at least one of these keys


def opened(path: Path) -> IO[bytes]:
    """The file, unpacked."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def read(path: Path) -> list[Transcript]:
    """The conversations of a file. Its records are runs of agents or talks between people, of any research data set:
    somewhere in each is a list of messages, or each line is a message of a channel."""
    with opened(path) as file:
        text = file.read().decode()
    records: list[Any] = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    if "channel" in records[0]:
        channels: dict[Any, list[Any]] = {}
        for record in records:
            channels.setdefault((record["channel"], record["file"]), []).append(record)
        records = [*channels.values()]
    name = path.name.partition(".")[0]
    return [
        build(map(_turn, _said(record)), format=name, key=f"{number}", on_bad_line=lambda line, reason: None)
        for number, record in enumerate(records)
    ]


def _said(value: Any) -> Iterator[dict[str, Any]]:
    """The items of all lists of messages in a record."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, list) and all(isinstance(one, dict) and one.keys() & _CONTENT for one in value):
        yield from value
    else:
        for item in items:
            yield from _said(item)


def _turn(item: dict[str, Any]) -> Turn:
    time = item.get("timestamp")
    if item.get("date") and item.get("time"):
        time = f"{item['date']}T{item['time']}"
    return Turn(_message(item), time=time, at=time)


def _message(item: dict[str, Any]) -> Message:
    if isinstance(item.get("message"), dict):  # an entry of a session of Claude Code
        return from_anthropic([item["message"]])[0]
    if "role" not in item:
        text, author, images = item.get("text") or item.get("message"), item.get("speaker"), item.get("img_url") or ()
        files = [AttachmentPart(modality="image", reference=url) for url in images]
        return Message(
            role="system" if item.get("kind") == "system" else "user",
            parts=(*([TextPart(text=text)] if text else []), *files),
            participant=Participant(kind="user", id=author, display_name=author) if author else None,
        )
    item = dict(item)
    if any("function" not in call for call in item.get("tool_calls") or ()):  # tau2 writes calls without it
        item["tool_calls"] = [{"id": call["id"], "function": call} for call in item["tool_calls"]]
    if item["role"] == "tool" and "id" in item:
        item["tool_call_id"] = item.pop("id")
    [message] = from_openai_chat([item])
    thinking = (item.get("raw_data") or {}).get("thinking_blocks") or ()
    signed = from_anthropic([{"role": "assistant", "content": [*thinking]}])[0].parts
    return replace(message, parts=(*signed, *message.parts))

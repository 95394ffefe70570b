"""Import ChatGPT's data export: `conversations.json`, a list of trees.

A conversation is a tree, because users can regenerate replies and edit questions. The branch that was shown last is
imported: from `current_node` up to the root. Other fields of an entry are kept in `provider_meta["chatgpt"]`.
"""

from __future__ import annotations

import json
from typing import Any

from redis_history.errors import InvalidMessageError
from redis_history.importers.source import Source
from redis_history.importers.transcript import Transcript, Turn, build, need, rest, scalar, size_of
from redis_history.model import (
    AttachmentPart,
    Message,
    Modality,
    Part,
    Participant,
    ReasoningPart,
    Role,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
)

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}
_TEXTS = ("text", "result", "user_profile", "user_instructions", "model_set_context", "content")


def is_tree(record: Any) -> bool:
    """Whether `record` is a conversation of an export."""
    return isinstance(record, dict) and isinstance(record.get("mapping"), dict)


def chatgpt(source: Source, line: int, record: Any) -> Transcript:
    """Import the current branch of a conversation."""
    mapping = need(record, "mapping", dict)
    leaves = [name for name, node in mapping.items() if isinstance(node, dict) and not node.get("children")]
    turns: list[Turn] = []
    empty = 0
    calls: dict[str, str] = {}  # the id of the nearest earlier call, by tool
    for node in _branch(mapping, leaves, record.get("current_node")):
        raw = node.get("message")
        if not isinstance(raw, dict):
            continue
        try:
            message = _message(raw, calls)
        except InvalidMessageError as error:
            source.problem(line, f"node {str(node.get('id'))[:60]}: {error}")
            continue
        if message.parts:
            turns.append(
                Turn(
                    message,
                    id=scalar(raw.get("id")) or scalar(node.get("id")),
                    time=raw.get("create_time"),
                    at=_time(node),
                )
            )
        else:
            empty += 1
    id_ = scalar(record.get("conversation_id")) or scalar(record.get("id"))
    return build(
        turns,
        format="chatgpt",
        key=id_ or f"{source.name}:{line}",
        on_bad_line=source.problem,
        title=scalar(record.get("title")),
        metadata={
            **rest(record, "mapping", "title"),
            **({"empty_messages_left_out": empty} if empty else {}),
            "branches": len(leaves),
        },
    )


def _branch(mapping: dict[str, Any], leaves: list[str], current: Any) -> list[dict[str, Any]]:
    """The nodes from the root to the current node. If that is missing, to the newest leaf."""
    if not isinstance(current, str) or current not in mapping:
        current = max(leaves, key=lambda name: _time(mapping[name]) or 0, default=None)
    found: dict[str, dict[str, Any]] = {}
    while isinstance(current, str) and current not in found and isinstance(mapping.get(current), dict):
        found[current] = mapping[current]
        current = mapping[current].get("parent")
    return [*found.values()][::-1]


def _time(node: dict[str, Any]) -> float | None:
    message = node.get("message")
    time = message.get("create_time") if isinstance(message, dict) else None
    return time if isinstance(time, int | float) and not isinstance(time, bool) else None


def _message(raw: dict[str, Any], calls: dict[str, str]) -> Message:
    author = need(raw, "author", dict)
    role = _ROLES.get(str(author.get("role")), "user")  # an unknown role must not gain the authority of system
    content = need(raw, "content", dict)
    recipient = scalar(raw.get("recipient")) or "all"
    name = scalar(author.get("name"))
    id_ = scalar(raw.get("id")) or ""
    parts = _parts(content)
    text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    files = [part for part in parts if not isinstance(part, TextPart)]
    if role == "tool" and parts:
        parts = [ToolResultPart(tool_use_id=calls.get(name or "", ""), content=text, name=name), *files]
    elif role == "assistant" and recipient != "all" and parts:
        calls[recipient] = id_
        parts = [ToolUsePart(id=id_, name=recipient, input=_arguments(text)), *files]
    metadata = raw.get("metadata")
    model = scalar(metadata.get("model_slug")) if isinstance(metadata, dict) else None
    kept = rest(content, "parts", "text", "thoughts")
    return Message(
        role=role,
        parts=tuple(parts),
        participant=Participant(kind="agent", id=model) if role == "assistant" and model else None,
        provider_meta={"chatgpt": {**rest(raw, "content", "id"), "content": kept}},
    )


def _parts(content: dict[str, Any]) -> list[Part]:
    if isinstance(thoughts := content.get("thoughts"), list):
        return [_thought(thought) for thought in thoughts if isinstance(thought, dict)]
    items = content.get("parts")
    found = [part for item in items if (part := _part(item))] if isinstance(items, list) else []
    texts = (content.get(key) for key in _TEXTS)
    return found or [TextPart(text=text) for text in texts if isinstance(text, str) and text]


def _part(item: Any) -> Part | None:
    if isinstance(item, str):
        return TextPart(text=item) if item else None
    match item:
        case {"asset_pointer": str(pointer)}:
            kind = str(item.get("content_type"))
            modality: Modality = "audio" if "audio" in kind else "video" if "video" in kind else "image"
            return AttachmentPart(
                modality=modality,
                reference=pointer,
                size=size_of(item.get("size_bytes")),
                provider_meta={"chatgpt": rest(item, "asset_pointer")},
            )
        case {"content_type": "audio_transcription", "text": str(text)}:
            return TextPart(text=text, provider_meta={"chatgpt": rest(item, "text")})
    return UnknownPart(data={"type": "chatgpt/part", "block": item})


def _thought(thought: dict[str, Any]) -> Part:
    texts = [text for key in ("summary", "content") if isinstance(text := thought.get(key), str) and text]
    return ReasoningPart(text="\n".join(texts), provider_meta={"chatgpt": thought})


def _arguments(text: str) -> Any:
    """The input of a call. ChatGPT stores text: JSON for some tools, a program or a query for others."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text

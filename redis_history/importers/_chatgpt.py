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
    turns: list[Turn] = []
    hidden = 0
    calls: dict[str, str] = {}  # the id of the nearest earlier call, by tool
    for node in _branch(mapping, record.get("current_node")):
        raw = node.get("message")
        if not isinstance(raw, dict):
            continue
        try:
            message = _message(raw, calls)
        except InvalidMessageError as error:
            source.problem(line, f"node {str(node.get('id'))[:60]}: {error}")
            continue
        if not message.parts:
            hidden += 1
            continue
        time = raw.get("create_time")
        at = time if isinstance(time, int | float) and not isinstance(time, bool) else None
        turns.append(Turn(message, id=scalar(raw.get("id")) or scalar(node.get("id")), time=time, at=at))
    identity = scalar(record.get("conversation_id")) or scalar(record.get("id"))
    left = {"empty_messages_left_out": hidden} if hidden else {}
    return build(
        turns,
        format="chatgpt",
        key=identity or f"{source.name}:{line}",
        on_bad_line=source.problem,
        title=scalar(record.get("title")),
        metadata={**rest(record, "mapping", "title"), **left, "branches": _branches(mapping)},
    )


def _branch(mapping: dict[str, Any], current: Any) -> list[dict[str, Any]]:
    """The nodes from the root to the current node, or to the newest leaf if there is no current node."""
    if not isinstance(current, str) or current not in mapping:
        current = _newest_leaf(mapping)
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    while isinstance(current, str) and current in mapping and current not in seen:
        seen.add(current)
        node = mapping[current]
        if not isinstance(node, dict):
            break
        found.append(node)
        current = node.get("parent")
    return found[::-1]


def _newest_leaf(mapping: dict[str, Any]) -> str | None:
    def time(name: str) -> float:
        message = mapping[name].get("message")
        value = message.get("create_time") if isinstance(message, dict) else None
        return float(value) if isinstance(value, int | float) else 0.0

    leaves = [name for name, node in mapping.items() if isinstance(node, dict) and not node.get("children")]
    return max(leaves, key=time, default=None)


def _branches(mapping: dict[str, Any]) -> int:
    return sum(1 for node in mapping.values() if isinstance(node, dict) and not node.get("children"))


def _message(raw: dict[str, Any], calls: dict[str, str]) -> Message:
    author = need(raw, "author", dict)
    role = _ROLES.get(str(author.get("role")), "user")  # an unknown role must not gain the authority of system
    content = need(raw, "content", dict)
    recipient = scalar(raw.get("recipient")) or "all"
    name = scalar(author.get("name"))
    parts = _parts(content)
    identity = scalar(raw.get("id")) or ""
    if role == "tool" and parts:
        parts = [_result(parts, calls.get(name or "", ""), name), *_files(parts)]
    elif role == "assistant" and recipient != "all" and parts:
        calls[recipient] = identity
        parts = [ToolUsePart(id=identity, name=recipient, input=_arguments(parts)), *_files(parts)]
    model = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
    slug = scalar(model.get("model_slug")) if isinstance(model, dict) else None
    left = rest(content, "parts", "text", "thoughts")
    return Message(
        role=role,
        parts=tuple(parts),
        participant=Participant(kind="agent", id=slug) if role == "assistant" and slug else None,
        provider_meta={"chatgpt": {**rest(raw, "content", "id"), "content": left}},
    )


def _parts(content: dict[str, Any]) -> list[Part]:
    if isinstance(thoughts := content.get("thoughts"), list):
        return [_thought(thought) for thought in thoughts if isinstance(thought, dict)]
    found: list[Part] = []
    for item in content.get("parts") if isinstance(content.get("parts"), list) else ():  # type: ignore[union-attr]
        part = _part(item)
        if part is not None:
            found.append(part)
    if not found:
        texts = (content.get(key) for key in _TEXTS)
        found = [TextPart(text=text) for text in texts if isinstance(text, str) and text]
    return found


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
    said = [text for key in ("summary", "content") if isinstance(text := thought.get(key), str) and text]
    return ReasoningPart(text="\n".join(said), provider_meta={"chatgpt": thought})


def _text(parts: list[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _files(parts: list[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, TextPart)]


def _result(parts: list[Part], call: str, name: str | None) -> Part:
    return ToolResultPart(tool_use_id=call, content=_text(parts), name=name)


def _arguments(parts: list[Part]) -> Any:
    """The input of a call. ChatGPT stores text: JSON for some tools, a program or a query for others."""
    text = _text(parts)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text

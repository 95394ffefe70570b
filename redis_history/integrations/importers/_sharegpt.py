"""ShareGPT: `{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}]}`, as chat messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from redis_history.errors import InvalidMessageError

#: Our role for each sender. The value of "function_call" is a call as JSON, and "observation" its result.
_ROLES: Final = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(
        ("gpt", "assistant", "chatgpt", "bing", "bard", "claude", "model", "bot", "function_call"), "assistant"
    ),
    **dict.fromkeys(("tool", "function", "function_response", "observation"), "tool"),
    "system": "system",
}


class _Call(msgspec.Struct):
    name: str
    arguments: Any = None


def is_sharegpt(message: Any) -> bool:
    return isinstance(message, Mapping) and "from" in message and "value" in message and "role" not in message


def chat_messages(messages: Iterable[Any]) -> Iterator[dict[str, Any] | InvalidMessageError]:
    """Yield a chat message for each message, or an error if it is invalid. Calls lack ids here, so they get numbers."""
    count = 0
    waiting: list[str] = []  # the ids of calls without a result
    for message in messages:
        sender = str(message.get("from") if isinstance(message, Mapping) else None).lower()
        role = _ROLES.get(sender)
        if role is None:
            yield InvalidMessageError(f"message 0 has the unknown sender {sender[:40]!r}; known: {', '.join(_ROLES)}")
            continue
        found = {"role": role, "content": message.get("value")}
        found |= {key: value for key, value in message.items() if key not in ("from", "value", *found)}
        if sender == "function_call" and (calls := _calls(message.get("value"))):
            ids = [f"call_{number}" for number in range(count, count + len(calls))]
            functions = [{"name": call.name, "arguments": call.arguments} for call in calls]
            pairs = zip(ids, functions, strict=True)
            found |= {"content": None, "tool_calls": [{"id": id_, "function": one} for id_, one in pairs]}
            count += len(calls)
            waiting += ids
        elif role == "tool":
            found["tool_call_id"] = waiting.pop(0) if waiting else ""
        yield found


def _calls(value: Any) -> list[_Call]:
    try:
        found = msgspec.json.decode(value, type=_Call | list[_Call])
    except (msgspec.MsgspecError, TypeError):
        return []  # it stays a text
    return found if isinstance(found, list) else [found]

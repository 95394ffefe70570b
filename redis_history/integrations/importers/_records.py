"""Finds the messages in a record: lists, requests and answers of providers, batch files, logs, rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

import msgspec

from redis_history.errors import InvalidMessageError
from redis_history.formats._usage import usage_in
from redis_history.integrations.importers._columns import names_conversation
from redis_history.integrations.importers._sharegpt import is_sharegpt
from redis_history.values import Usage

Form = Literal["openai_chat", "openai_responses", "anthropic", "langchain", "sharegpt"]

_LISTS: Final = ("messages", "conversations", "conversation")
_ANTHROPIC_BLOCKS: Final = frozenset(
    ("thinking", "redacted_thinking", "image", "document", "search_result", "container_upload")
)
_RESPONSES_BLOCKS: Final = frozenset(("input_text", "input_image", "input_file", "output_text"))
_LANGCHAIN_TYPES: Final = frozenset(("human", "ai", "system", "tool", "function", "chat"))
_NESTED: Final = ("message", "message_data")


class Found(NamedTuple):
    """The `messages` of a record, their `form` if the record states it, the separate `system` value, and the `rest` of
    the record. `further`: the number of alternative answers that are left out. `usage`: what an answer reports beside
    its last message."""

    messages: list[Any]
    form: Form | None
    system: Any
    rest: dict[str, Any]
    further: int = 0
    usage: Usage | None = None


def find(record: Any) -> Found | None:
    """Return the conversation in a record, or None. Raises InvalidMessageError for a request that failed."""
    if isinstance(record, list):
        return Found(record, None, None, {}) if record else None
    if not isinstance(record, dict):
        return None
    response, result = record.get("response"), record.get("result")
    inner = response.get("body") if isinstance(response, dict) else None
    given = next(_answers((record, record.get("body"), response, inner, result)), None)
    is_responses = str(record.get("url")).endswith("/responses") or (
        given is not None and given[1] == "openai_responses"
    )
    holders = (record, record.get("body"), record.get("request"), record.get("params"))
    asked = next(_requests(holders, is_responses), None)
    if asked is None and given is None:
        _check_success(record, response, inner, result)
        return None
    messages, form, taken, holder = asked or ([], None, None, {})
    answer, answer_form, answer_taken, further, usage = given or ([], None, None, 0, None)
    form = form or answer_form
    system = holder.get("instructions") if form == "openai_responses" else holder.get("system")
    rest = _without(record, (taken, answer_taken))
    return Found([*messages, *answer], form, system, rest, further, usage)


def row_of(record: Any) -> Mapping[str, Any] | None:
    """The message of a record that is one message, perhaps a row of a table with the message in a column as JSON."""
    if not isinstance(record, dict) or any(isinstance(record.get(name), list) for name in _LISTS):
        return None
    if "role" in record or is_sharegpt(record) or is_langchain(record) or _is_item(record):
        return record
    if names_conversation(record):
        for value in (record.get(name) for name in _NESTED):
            if isinstance(value, str) and value.lstrip().startswith("{"):
                try:
                    value = msgspec.json.decode(value)
                except msgspec.MsgspecError:
                    continue
            if isinstance(value, dict):
                return value
    return None


def is_conversation(record: Any) -> bool:
    """Whether a record has messages, or is one."""
    try:
        found = find(record)
    except InvalidMessageError:
        return True  # a batch file
    messages = [row_of(record)] if found is None else found.messages
    return any(is_sharegpt(one) or is_langchain(one) or _is_chat(one) for one in messages)


def form_of(messages: Iterable[Any], system: Any = None) -> Form:
    """The format of messages, by keys and types that are specific to it."""
    known = [message for message in messages if isinstance(message, dict)]
    if any(map(is_langchain, known)):
        return "langchain"
    if any(map(is_sharegpt, known)):
        return "sharegpt"
    types = {str(block.get("type")) for block in _blocks(known)}
    if types & _RESPONSES_BLOCKS or any(map(_is_item, known)):
        return "openai_responses"
    if any(one.get("role") in ("tool", "developer", "function") or one.get("tool_calls") for one in known):
        return "openai_chat"
    own = types & _ANTHROPIC_BLOCKS or any(one.endswith(("tool_use", "tool_result")) for one in types)
    return "anthropic" if own or system is not None else "openai_chat"


def is_langchain(message: Any) -> bool:
    match message:
        case {"type": str(kind), "data": {"content": _}}:
            return kind.removesuffix("MessageChunk").lower() in _LANGCHAIN_TYPES
        case {"lc": int(), "id": [*_, str(name)], "kwargs": Mapping()}:
            return name.endswith(("Message", "MessageChunk"))
        case {"type": str(kind), "content": _}:
            return kind in _LANGCHAIN_TYPES and "role" not in message
    return False


def _is_item(message: dict[str, Any]) -> bool:
    """Whether a message is an item of the Responses API without a role."""
    kind = str(message.get("type"))
    return "role" not in message and (kind == "reasoning" or kind.endswith(("_call", "_call_output")))


def _is_chat(message: Any) -> bool:
    return isinstance(message, dict) and ("role" in message or isinstance(message.get("type"), str))


def _blocks(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    contents = (message.get("content") for message in messages)
    blocks = chain.from_iterable(content for content in contents if isinstance(content, list))
    return (block for block in blocks if isinstance(block, dict))


def _requests(
    holders: Iterable[Any], is_responses: bool
) -> Iterator[tuple[list[Any], Form | None, Any, dict[str, Any]]]:
    """The messages of a request, their form, the value that has them, and the request. `is_responses`: it is known to
    be one of the Responses API."""
    for holder in holders:
        if not isinstance(holder, dict):
            continue
        for name in _LISTS:
            if isinstance(found := holder.get(name), list):
                yield found, None, found, holder
        found = holder.get("input")
        is_own = is_responses or holder.get("object") == "response"
        if isinstance(found, str) and is_own:
            yield [{"role": "user", "content": found}], "openai_responses", found, holder
        elif isinstance(found, list) and (is_own or any(map(_is_chat, found))):
            yield found, "openai_responses", found, holder


def _answers(holders: Iterable[Any]) -> Iterator[tuple[list[Any], Form | None, Any, int, Usage | None]]:
    """The messages of an answer, their form, the value that has them, the number of its alternatives, and its usage
    unless a message has it."""
    for holder in holders:
        match holder:
            case {"choices": [{"message": {"role": str()} as message}, *others] as choices}:
                yield [message], None, choices, len(others), usage_in(holder)
            case {"object": "response", "output": list(output)}:
                yield output, "openai_responses", output, 0, usage_in(holder)
            case {"type": "succeeded", "message": {"role": str()} as message}:
                yield [message], "anthropic", message, 0, None
            case {"type": "message", "role": "assistant", "content": list(), "id": str()}:
                yield [holder], "anthropic", holder, 0, None


def _check_success(record: dict[str, Any], response: Any, inner: Any, result: Any) -> None:
    """Raises InvalidMessageError for the output of a batch without an answer."""
    if "custom_id" not in record:
        return
    holders = (record, inner, response, result)
    error = next((one["error"] for one in holders if isinstance(one, dict) and one.get("error")), None)
    if error is None and isinstance(result, dict):
        error = result.get("type")
    if error is not None:
        reason = error.get("message", error) if isinstance(error, dict) else error
        raise InvalidMessageError(f"the request of the batch has no answer: {str(reason)[:200]}")
    if isinstance(record.get("url"), str):
        raise InvalidMessageError(f"the request to {record['url'][:80]} has no conversation")


def _without(value: Any, taken: tuple[Any, ...]) -> Any:
    """A record without the values that were read."""
    if not isinstance(value, dict):
        return value
    return {name: _without(one, taken) for name, one in value.items() if not any(one is each for each in taken if each)}

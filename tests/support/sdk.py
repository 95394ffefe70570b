"""The providers' own types, to validate with. Each SDK is imported when it is first asked."""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

__all__ = ["is_valid", "torn", "type_of", "validate"]


@cache
def type_of(form: str) -> TypeAdapter[Any]:
    """The type of a list of messages in a provider's SDK."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the SDKs, at import
        if form == "anthropic":
            from anthropic.types.beta import BetaMessageParam as Item  # has MCP, too
        elif form == "openai_chat":
            from openai.types.chat import ChatCompletionMessageParam as Item
        elif form == "openai_responses":
            from openai.types.responses import ResponseInputItemParam as Item
        elif form == "mistral":
            from mistralai.client.models import ChatCompletionRequestMessage as Item
        else:
            from google.genai.types import Content as Item
        return TypeAdapter(list[Item])


def validate(form: str, items: Sequence[Any]) -> None:
    """Raises pydantic's ValidationError for what the provider's types do not take."""
    _exhaust(type_of(form).validate_python(list(items)))


def is_valid(form: str, items: Sequence[Any]) -> bool:
    try:
        validate(form, items)
    except ValidationError:
        return False
    return True


def _exhaust(value: Any) -> None:
    """`Iterable` in a TypedDict is validated as it is read."""
    if isinstance(value, dict):
        for item in value.values():
            _exhaust(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__") and not hasattr(value, "model_dump"):
        for item in value:
            _exhaust(item)


def torn(form: str, items: Sequence[Any]) -> list[str]:
    """The ids of tool calls and results for which the API of chat completions, or Anthropic's, refuses a request: a
    result must follow its call, with nothing between them but other results, and a call must have a result."""
    wrong: list[str] = []
    waiting: list[str] = []
    for item in items:
        for result in _results(form, item):
            if result in waiting:
                waiting.remove(result)
            else:
                wrong.append(result)
        if item["role"] == "assistant" or not _results(form, item):
            wrong += waiting
            waiting = []
        waiting += _calls(form, item)
    return wrong + waiting


def _blocks(item: Any, kind: str) -> list[Any]:
    content = item["content"]
    return [block for block in content if block["type"] == kind] if isinstance(content, list) else []


def _calls(form: str, item: Any) -> list[str]:
    if form == "anthropic":
        return [block["id"] for block in _blocks(item, "tool_use")]
    return [call["id"] for call in item.get("tool_calls", ())]


def _results(form: str, item: Any) -> list[str]:
    if form == "anthropic":
        return [block["tool_use_id"] for block in _blocks(item, "tool_result")]
    return [item["tool_call_id"]] if item["role"] == "tool" else []

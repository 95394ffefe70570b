"""The usage that replies of providers report, and whole replies among the items of a format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from redis_history.errors import InvalidMessageError
from redis_history.formats._sdk_objects import plain
from redis_history.values.usage import Usage

#: The names of each number, by providers and frameworks.
_INPUT: Final = (
    *("input_tokens", "prompt_tokens", "prompt_token_count", "promptTokenCount", "input_token_count"),
    *("request_tokens", "inputTokens"),
)
_OUTPUT: Final = (
    *("output_tokens", "completion_tokens", "candidates_token_count", "candidatesTokenCount", "output_token_count"),
    *("response_tokens", "outputTokens"),
)
_CACHED: Final = (
    *("cached_tokens", "cache_read_input_tokens", "cache_read_tokens", "cache_read", "cached_content_token_count"),
    *("cachedContentTokenCount", "cache_read_input_token_count", "cacheReadInputTokens"),
)
#: Objects inside that have the number of cached tokens.
_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details", "input_token_details", "details")
#: Tokens that some providers count apart from the input (with these names for it) or from the output.
_BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "input_tokens": ("cache_read_input_tokens", "cache_creation_input_tokens"),
    "prompt_token_count": ("tool_use_prompt_token_count",),
    "promptTokenCount": ("toolUsePromptTokenCount",),
    "candidates_token_count": ("thoughts_token_count",),
    "candidatesTokenCount": ("thoughtsTokenCount",),
}
_MODEL: Final = ("model", "model_version", "modelVersion", "model_name", "model_id")
_COST: Final = ("cost", "total_cost", "cost_usd", "total_cost_usd")
_PLACES: Final = ("usage", "usage_metadata", "usageMetadata")


def usage_of(given: Any, *, model: Any = None) -> Usage | None:
    """The usage in an object of a provider or framework with numbers of tokens; None without any, or with numbers that
    no message can have."""
    given = plain(given)
    if not isinstance(given, Mapping):
        return None
    read, written = _number(given, _INPUT), _number(given, _OUTPUT)
    if read is None and written is None:
        return None
    total = given.get("totalTokens")
    if "inputTokens" in given and type(total) is int:  # with the cache, which Bedrock counts separately
        read = max(read or 0, total - (written or 0))
    details: Mapping[str, Any] = next((given[name] for name in _DETAILS if isinstance(given.get(name), Mapping)), {})
    cached = _number(given, _CACHED) or _number(details, _CACHED) or 0
    cost = next((given[name] for name in _COST if given.get(name) is not None), 0)
    name = model if isinstance(model, str) and model else None
    if not (read or written or cost):
        return None
    try:
        return Usage.of(Usage(read or 0, written or 0, cached, float(cost), name))
    except (InvalidMessageError, TypeError, ValueError):
        return None


def _number(given: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The number under the first of these names, with the tokens that are counted separately."""
    for name in names:
        value = given.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value + sum(_number(given, (more,)) or 0 for more in _BESIDE.get(name, ()))
    return None


def usage_in(reply: Mapping[str, Any]) -> Usage | None:
    """The usage that a reply, or a message that was one, has in the place of its provider."""
    found = next((reply[name] for name in _PLACES if reply.get(name) is not None), None)
    if found is None:
        return None
    return usage_of(found, model=next((reply[name] for name in _MODEL if reply.get(name)), None))


def unwrapped(items: Iterable[Any]) -> tuple[list[Any], dict[int, Usage]]:
    """The items, with those of whole replies of an API in the place of these, and the usage of replies by the index of
    their last item."""
    found: list[Any] = []
    used: dict[int, Usage] = {}
    for given in items:
        item = given if type(given) is dict and "role" in given else plain(given)
        match item:
            case {"role": str(role)}:
                usage = usage_in(item) if role in ("assistant", "model") else None
                found.append(item)
            case {"choices": [{"message": Mapping() as message}, *_]}:
                usage = usage_in(item)
                found.append(message)
            case {"object": "response", "output": [*inside]}:
                usage = usage_in(item)
                found += inside
            case {"output": {"message": Mapping() as message}}:  # of Bedrock
                usage = usage_in(item)
                found.append(message)
            case {"candidates": [{"content": Mapping() as content}, *_]}:
                usage = usage_in(item)
                found.append(content)
            case _:
                usage = None
                found.append(item)
        if usage is not None and found:
            used[len(found) - 1] = usage
    return found, used

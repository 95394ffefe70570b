"""Objects of SDKs as dicts, and keys that only objects and replies have, which APIs reject in a request.

SDKs are recognized by what their objects can do (pydantic models), so that none has to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

#: What SDKs parse for the caller: a second form of content that is in the message, too.
PARSED: Final = frozenset(("parsed", "parsed_arguments", "parsed_output"))
#: Classes of values that mean that a field was not given.
_NOT_GIVEN: Final = ("Unset", "NotGiven", "Omit")


def plain(value: Any) -> Any:
    """`value` with dicts in the place of SDK objects, at any depth. Other values stay the same."""
    try:
        return _plain(value)
    except RecursionError:  # the message model reports it
        return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = map(_plain, value)
        return list(items) if isinstance(value, list) else tuple(items)
    return _dumped(value) if hasattr(type(value), "model_dump") else value


def _dumped(item: Any) -> Any:
    """The fields that were set, by the API's names, without those that the SDK itself never sends. `type` and `role`
    also if they are defaults, because they say what the object is."""
    names = getattr(item, "model_fields_set", None)
    if names is None:
        return item.model_dump()
    left_out = getattr(item, "__api_exclude__", None)
    left_out = PARSED.union(left_out if isinstance(left_out, set | frozenset) else ())
    found = {}
    for name in (*type(item).model_fields, *(item.model_extra or ())):
        value = getattr(item, name, None)
        said = name in names or (name in ("type", "role") and isinstance(value, str))
        if said and name not in left_out and type(value).__name__ not in _NOT_GIVEN:
            found[name.removesuffix("_")] = _plain(value)  # `async_` is a keyword of Python
    return found


def without(
    item: Any,
    places: Mapping[str, Collection[str]],
    *,
    only: bool = False,
    dropped: Callable[[str, Any], None] | None = None,
) -> Any:
    """`item` without these keys in these places, such as "tool_calls.function" ("" is the item itself); `only`: with no
    other keys. A place may hold a list. What is changed is copied. `dropped` is called with each key and its value."""
    for place, keys in places.items():
        item = _pruned(item, place.split(".") if place else (), keys, only, dropped)
    return item


def _pruned(value: Any, path: Sequence[str], keys: Collection[str], only: bool, dropped: Any) -> Any:
    if isinstance(value, list):
        items = [_pruned(item, path, keys, only, dropped) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    if path:
        inner = value.get(path[0])
        found = _pruned(inner, path[1:], keys, only, dropped)
        return value if found is inner else {**value, path[0]: found}
    gone = [key for key in value if (key in keys) != only]
    for key in gone if dropped is not None else ():
        dropped(key, value[key])
    return {key: item for key, item in value.items() if key not in gone} if gone else value

"""Objects of SDKs as dicts, and keys that only objects and replies have, which APIs reject in a request.

SDKs are recognized by what their objects can do (pydantic models), so that none has to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

#: Values that SDKs parse for the caller: a second form of content that the message already contains.
PARSED: Final = frozenset(("parsed", "parsed_arguments", "parsed_output"))
#: Keys that streams and litellm add to blocks and calls.
ADDED: Final = frozenset(("index", "provider_specific_fields"))
_VALUES: Final = frozenset((str, int, float, bool, bytes, type(None)))
Dropped = Callable[[str, Any], None]
#: Classes of values that mean that a field was not given.
_NOT_GIVEN: Final = ("Unset", "NotGiven", "Omit")


def plain(value: Any) -> Any:
    """`value` with dicts in the place of SDK objects, at any depth. Other values stay the same."""
    try:
        return value if _has_only_values(value) else _plain(value)
    except RecursionError:  # the message model reports it
        return value


def _has_only_values(value: Any) -> bool:
    """Whether no value needs conversion, as usual. This is much faster than copying the value."""
    items = value.values() if type(value) is dict else value if type(value) is list else None
    if items is None:
        return type(value) in _VALUES
    return all(type(item) in _VALUES or _has_only_values(item) for item in items)


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


#: Keys by the places that have them, such as "tool_calls.function" ("" is the message itself).
Places = Mapping[str, frozenset[str]]


def without(item: Any, places: Places, *, only: bool = False, dropped: Dropped | None = None) -> Any:
    """`item` without these keys in these places. `only`: with these keys alone there. A place may hold a list. Changed
    objects are copied. `dropped` is called with each key and its value."""
    for place, keys in places.items():
        if not place:
            item = _pruned(item, (), keys, only, dropped)
        elif place in item or place.partition(".")[0] in item:
            item = _pruned(item, place.split("."), keys, only, dropped)
    return item


def _pruned(value: Any, path: Sequence[str], keys: frozenset[str], only: bool, dropped: Dropped | None) -> Any:
    if isinstance(value, list):
        items = value
        for at, item in enumerate(value):
            found = _pruned(item, path, keys, only, dropped)
            if found is not item:
                items = [*items] if items is value else items
                items[at] = found
        return items
    if not isinstance(value, dict):
        return value
    if path:
        inner = value.get(path[0])
        found = inner if isinstance(inner, str | None) else _pruned(inner, path[1:], keys, only, dropped)
        return value if found is inner else {**value, path[0]: found}
    if value.keys() <= keys if only else keys.isdisjoint(value):
        return value
    gone = [key for key in value if (key in keys) != only]
    for key in gone if dropped is not None else ():
        dropped(key, value[key])  # type: ignore[misc] # it is not None here
    return {key: item for key, item in value.items() if key not in gone}

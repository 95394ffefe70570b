"""Messages as rows of values, which are stored, and as maps, which people read.

Both leave out defaults, and keep unknown content: `extra` has the fields with other names, and an UnknownPart is a part
of another type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from redis_history.values.message import Message, Participant, Source
from redis_history.values.parts import PART_TYPES, OpenStruct, Part, TextPart, UnknownPart
from redis_history.values.usage import Usage

#: The order of a message's fields in maps.
NAMES: Final = (
    *("id", "role", "parts", "participant", "timestamp", "scope", "metadata", "sources", "trace_id", "provider_meta"),
    "sequence",
    "status",
    "usage",
)
_AT = {name: place for place, name in enumerate(Message.__struct_fields__)}
#: The fields that hold structs.
_PARTS, _PARTICIPANT, _SOURCES, _USAGE = _AT["parts"], _AT["participant"], _AT["sources"], _AT["usage"]
_PATH = re.compile(r"`\$((?:\[[0-9]+\])+)")


def _defaults(kind: type[OpenStruct]) -> list[Any]:
    fields = msgspec.structs.fields(kind)
    made = [
        field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory() for field in fields
    ]
    return [[] if default == () else default for default in made]  # as in a row


_KINDS: tuple[type[OpenStruct], ...] = (*PART_TYPES.values(), Participant, Source, Usage, Message)
_DEFAULTS = {kind: _defaults(kind) for kind in _KINDS}
_EXTRA = {kind: kind.__struct_fields__.index("extra") for kind in _KINDS}
#: The names of the fields without `extra`.
OWN_FIELDS: Final = {kind: tuple(name for name in kind.__struct_fields__ if name != "extra") for kind in _KINDS}
_TAGS = {kind: kind.__struct_config__.tag for kind in _KINDS}


def row_of(struct: OpenStruct) -> list[Any]:
    """The values of a struct in their order, without those at the end that have their default."""
    kind = type(struct)
    if kind is TextPart and struct.provider_meta is None and struct.extra is None:  # type: ignore[attr-defined]
        return [1, struct.text]  # type: ignore[attr-defined]
    if kind is UnknownPart:
        return _unknown_row(struct)  # type: ignore[arg-type]
    row = [*msgspec.structs.astuple(struct)]
    if kind is Message:
        row[0], row[1] = 0, None
        row[_PARTS] = [row_of(part) for part in row[_PARTS]]
        row[_SOURCES] = [row_of(source) for source in row[_SOURCES]]
        if row[_PARTICIPANT] is not None:
            row[_PARTICIPANT] = row_of(row[_PARTICIPANT])
        if row[_USAGE] is not None:
            row[_USAGE] = row_of(row[_USAGE])
    extra = row[_EXTRA[kind]]
    if extra is not None:
        _check_extra(extra, kind)
    defaults = _DEFAULTS[kind]
    while row and row[-1] == defaults[len(row) - 1] and type(row[-1]) in (type(defaults[len(row) - 1]), dict):
        row.pop()
    tag = _TAGS[kind]
    return row if tag is None else [tag, *row]


def _check_extra(extra: Any, kind: type[OpenStruct]) -> None:
    if not isinstance(extra, dict) or not all(isinstance(name, str) for name in extra):
        raise TypeError("extra is a map of unknown fields")
    own = {*OWN_FIELDS[kind]} | ({"type"} if _TAGS[kind] else set())
    if taken := sorted(own & extra.keys()):
        raise TypeError(f"extra has {', '.join(taken)}, which is a field of its own")


def _unknown_row(part: UnknownPart) -> list[Any]:
    data = part.data
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise TypeError("the data of an unknown part is a map with a type")
    if data["type"] in PART_TYPES:
        raise TypeError(f"a part of type {data['type']!r} is not unknown; use its class")
    return [UnknownPart.__struct_config__.tag, data]


def part_of(row: Any) -> Part:
    """The part of a row. Raises msgspec.ValidationError."""
    part: Part = msgspec.convert(row, Part)
    return part


def map_of(struct: Any, names: Iterable[str]) -> dict[str, Any]:
    kind = type(struct)
    if kind is UnknownPart:
        _unknown_row(struct)
        return dict(struct.data)
    fields: dict[str, Any] = {"type": struct.type} if _TAGS[kind] else {}
    defaults = dict(zip(kind.__struct_fields__, _DEFAULTS[kind], strict=True))
    for name in names:
        value = getattr(struct, name)
        if isinstance(value, tuple):
            value = [map_of(item, OWN_FIELDS.get(type(item), ())) for item in value]
        elif isinstance(value, OpenStruct):
            value = map_of(value, OWN_FIELDS[type(value)])
        if value != defaults[name] or (type(value) is not type(defaults[name]) and type(value) is not dict):
            fields[name] = value
    if struct.extra is not None:
        _check_extra(struct.extra, kind)
        fields |= struct.extra
    return fields


def name_fields(error: str, message: Message) -> str:
    """The text of a decoder's error, with the names of fields instead of their indices."""
    match = _PATH.search(error)
    if match is None:
        return error
    value: Any = message
    path = ""
    for place in map(int, match[1][1:-1].split("][")):
        if isinstance(value, msgspec.Struct):
            name = value.__struct_fields__[place - (value.__struct_config__.tag is not None)]
            path, value = f"{path}.{name}" if path else name, getattr(value, name)
        else:
            path, value = f"{path}[{place}]", value[place] if isinstance(value, list | tuple) else None
    return f"{error[: match.start()]}`{path}{error[match.end() :]}"


def known_fields(fields: Any) -> dict[str, Any]:
    """The arguments for the message of a map: its fields, with structs in place of maps, and `extra`."""
    known = _arguments(fields, Message, "schema_version")
    if known.get("parts") is not None:
        known["parts"] = tuple(map(_part, known["parts"]))
    if known.get("participant") is not None:
        known["participant"] = _struct(known["participant"], Participant)
    if known.get("sources") is not None:
        known["sources"] = tuple(_struct(source, Source) for source in known["sources"])
    if known.get("usage") is not None:
        known["usage"] = _struct(known["usage"], Usage)
    return known


def _part(fields: Any) -> Any:
    if isinstance(fields, msgspec.Struct):
        return fields  # only from users; `Message` checks its type
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise TypeError("a part is a map with a type")
    kind = PART_TYPES.get(fields["type"])
    return UnknownPart(data=fields) if kind is None else _struct(fields, kind, "type")


def _struct(fields: Any, kind: Callable[..., Any], ignored: str = "") -> Any:
    return fields if isinstance(fields, msgspec.Struct) else kind(**_arguments(fields, kind, ignored))


def _arguments(fields: Any, kind: Any, ignored: str) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise TypeError(f"a {kind.__name__} is a map")
    names = OWN_FIELDS[kind]
    extra = {name: value for name, value in fields.items() if name not in names and name != ignored}
    return {**{name: fields[name] for name in names if name in fields}, "extra": extra or None}

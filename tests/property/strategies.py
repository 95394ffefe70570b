"""Hypothesis strategies: any valid message, part and id, and the unknown fields a newer version may add.

The suite's conftest sets the profile.
"""

from datetime import timedelta, timezone
from typing import Any, get_args

from hypothesis import strategies as st

from redis_history import tool_result, tool_use
from redis_history.values import (
    AttachmentPart,
    Message,
    Modality,
    Participant,
    ReasoningPart,
    Role,
    Scope,
    Source,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    UnknownPart,
    Usage,
)
from redis_history.values.times import MAX_MICROSECONDS, from_microseconds
from redis_history.values.usage import MAX_COST, MAX_TOKENS

#: Any text that UTF-8 can carry: no lone surrogates, everything else.
texts = st.text(max_size=24)
_maybe = st.none() | texts

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
#: What JSON can say, with the integers of 64 bits.
json_values: st.SearchStrategy[Any] = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
)
json_maps = st.dictionaries(texts, json_values, max_size=4)

#: Fields under names that no version knows yet.
future_fields = st.dictionaries(texts.map(lambda name: f"future_{name}"), json_values, min_size=1, max_size=3)


def _inside(extra: st.SearchStrategy[Any]) -> tuple[Any, Any, Any]:
    """Participants, sources and parts whose unknown fields are `extra`."""
    kinds = st.sampled_from(["user", "agent", "system"])
    scores = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6)
    file = dict.fromkeys(("id", "name", "mime_type", "reference"), _maybe)
    file |= {"size": st.none() | st.integers(0, 2**63 - 1), "modality": st.none() | st.sampled_from(get_args(Modality))}
    result = {"tool_use_id": texts, "content": json_values, "is_error": st.booleans(), "name": _maybe}
    fields: dict[Any, dict[str, Any]] = {
        TextPart: {"text": texts},
        ReasoningPart: {"text": texts, "signature": _maybe},
        ToolUsePart: {"id": texts, "name": texts, "input": json_values},
        ToolResultPart: result,
        AttachmentPart: file,
    }
    meta = {"provider_meta": st.none() | json_maps, "extra": extra}
    return (
        st.builds(Participant, kind=kinds, id=texts, display_name=_maybe, extra=extra),
        st.builds(Source, document_id=_maybe, document_name=_maybe, chunk=_maybe, score=scores, extra=extra),
        st.one_of(st.builds(kind, **own, **meta) for kind, own in fields.items()),
    )


#: Participants, sources and parts of this version, and of a newer one.
_KNOWN = _inside(st.none())
_NEWER = _inside(st.none() | future_fields)
#: Parts of a type that only a newer version knows.
unknown_parts = st.builds(
    lambda kind, fields: UnknownPart(data={"type": f"future_{kind}", **fields}), texts, future_fields | st.just({})
)
participants = _KNOWN[0] | _NEWER[0]
sources = _KNOWN[1] | _NEWER[1]
parts = _KNOWN[2] | _NEWER[2] | unknown_parts

#: Every instant a score holds exactly, with the edges of the fast paths more often than by chance.
microseconds = st.one_of(
    st.integers(-MAX_MICROSECONDS, MAX_MICROSECONDS),
    st.integers(-1000, 1000),
    st.integers(2**33 * 10**6 - 1000, 2**33 * 10**6 + 1000),
    st.integers(2**32 * 10**6 - 1000, 2**32 * 10**6 + 1000),
    st.integers(MAX_MICROSECONDS - 1000, MAX_MICROSECONDS),
    st.integers(-MAX_MICROSECONDS, 1000 - MAX_MICROSECONDS),
)
_offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
#: Aware datetimes in any time zone.
timestamps = st.builds(lambda at, zone: from_microseconds(at).astimezone(zone), microseconds, _offsets)


#: Usages of answers.
usages = st.builds(
    Usage,
    *(st.integers(0, MAX_TOKENS) for _ in range(3)),
    st.integers(0, MAX_COST) | st.floats(0, MAX_COST),
    _maybe,
    st.none() | future_fields,
)


def _at_most(size: int) -> Any:
    return lambda text: len(text.encode()) <= size


message_ids = st.text(min_size=1, max_size=512).filter(_at_most(512))
conversation_ids = st.text(min_size=1, max_size=512).filter(_at_most(512))
namespaces = st.text(min_size=1, max_size=32).filter(_at_most(128))


def messages(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    """Any valid message; `fixed` replaces the strategy of a field, as in `messages(role=st.just("user"))`.

    Half of them have nothing but what this version knows: they take another way through the codec than the rest.
    """
    return _messages(*_KNOWN, st.none(), fixed) | _messages(
        _NEWER[0], _NEWER[1], _NEWER[2] | unknown_parts, st.none() | future_fields, fixed
    )


def _messages(
    participants: Any, sources: Any, parts: Any, extra: st.SearchStrategy[Any], fixed: dict[str, Any]
) -> st.SearchStrategy[Message]:
    fields: dict[str, st.SearchStrategy[Any]] = {
        "role": st.sampled_from(get_args(Role)),
        "parts": st.lists(parts, max_size=4).map(tuple),
        "id": st.uuids(version=4).map(str) | message_ids,
        "participant": st.none() | participants,
        "timestamp": st.none() | timestamps,
        "scope": st.none() | st.sampled_from(get_args(Scope)),
        "metadata": json_maps,
        "sources": st.lists(sources, max_size=2).map(tuple),
        "trace_id": _maybe,
        "provider_meta": json_maps,
        "extra": extra,
        "usage": st.none() | usages,
    }
    return st.builds(Message, **{**fields, **fixed})


#: Turns with calls and results, for histories of any kind.
_PARTS = st.lists(
    st.sampled_from(["x", "yy", *(tool_use(id, "f") for id in "123"), *(tool_result(id, "r") for id in "123")]),
    min_size=1,
    max_size=3,
)
TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "tool"]), _PARTS), max_size=30)

ANN, BOB = Participant("agent", "ann"), Participant("agent", "bob")


def tool_messages(makers: list[Any], authors: list[Participant | None]) -> st.SearchStrategy[Message]:
    """Messages with calls and results of two ids."""
    parts = st.sampled_from(["x", *(tool_use(n, "f") for n in "12"), *(tool_result(n, "r") for n in "12")])
    return st.builds(
        lambda make, parts, author: make(*parts, participant=author),
        st.sampled_from(makers),
        st.lists(parts, min_size=1, max_size=3, unique_by=repr),
        st.sampled_from(authors),
    )

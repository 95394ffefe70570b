"""How originals are remembered: `rebuild(ours, remember(original, ours))` is `original`, keys in order."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.errors import InvalidMessageError
from redis_history.formats._content import dump_arguments, parse_arguments
from redis_history.formats._notes import rebuild, remember

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
envelope = st.dictionaries(st.sampled_from(["a", "b", "c", "d", "type"]), values, max_size=5)


@given(envelope, envelope)
def test_any_original_comes_back(original, ours):
    without_change = {key: value for key, value in ours.items() if not value or key not in ("a", "b", "c", "d")}
    back = rebuild(without_change, remember(original, without_change))
    assert back == original
    assert list(back) == list(original)


def test_equal_dicts_need_no_note():
    assert remember({"type": "text", "text": "x"}, {"type": "text", "text": "x"}) == {}


def test_content_that_differs_is_refused():
    with pytest.raises(InvalidMessageError, match="content"):
        remember({"role": "user", "content": "a"}, {"role": "user", "content": "b"})


def test_a_note_never_overrules_newer_content():
    note = remember({"content": None, "role": "user"}, {"role": "user", "content": ""})
    assert rebuild({"role": "user", "content": "edited"}, note) == {"role": "user", "content": "edited"}


@given(
    st.dictionaries(st.text(), values, max_size=4),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]),
    st.booleans(),
)
def test_arguments_come_back_as_they_were_written(value, separators, ascii_only):
    raw = json.dumps(value, separators=separators, ensure_ascii=ascii_only)
    parsed, note = parse_arguments(raw)
    assert parsed == value
    assert dump_arguments(parsed, note) == raw


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        '"text"',
        '{"a": NaN}',
        '{"a": 1e400}',
        '{"a": "\\ud800"}',
        '{"n": 123456789012345678901234567890}',
        "[" * 200 + "]" * 200,
        "[" * 100_000,
    ],
)
def test_arguments_that_cannot_be_stored_as_values_stay_text(raw):
    parsed, note = parse_arguments(raw)
    assert parsed == raw
    assert dump_arguments(parsed, note) == raw


@pytest.mark.parametrize("raw", ['{"a":1,"a":2}', '{"a":1e5}', "[1,2]", "null", '{ "a" : 1 }', '{"é":"\\u00e9"}'])
def test_odd_json_is_parsed_and_given_back(raw):
    parsed, note = parse_arguments(raw)
    assert parsed == json.loads(raw)
    assert dump_arguments(parsed, note) == raw


def test_edited_arguments_win_over_the_string_they_came_in():
    parsed, note = parse_arguments('{ "a" : 1 }')
    assert dump_arguments({**parsed, "b": 2}, note) == '{"a":1,"b":2}'

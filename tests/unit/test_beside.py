"""The stored form of large contents."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history import Message, PartialMessage, assistant, tool, tool_result, tool_use, user
from redis_history.errors import CorruptDataError, InvalidMessageError, MessageTooLargeError
from redis_history.store.writes import Entry
from redis_history.values import UnknownPart, beside, wire
from redis_history.values.pairs import marks
from redis_history.values.sizes import MAX_CHARACTERS, count_characters

LARGE = beside.LARGE_BYTES
ROWS = [{"id": number, "name": "row" * 5} for number in range(3_000)]
IMAGE = "QUJD" * LARGE


def stored(message: Message, *, zstd: bool = False) -> PartialMessage:
    """The message as the sorted set has it."""
    form = Entry.of(message).packed(zstd=zstd)
    found = wire.decode_member(wire.encode_member(7, count_characters(message), form.flags, 5_000_000, form.body))
    assert isinstance(found, PartialMessage)
    return found


def values(message: Message) -> list[bytes]:
    by_digest = {one.digest: one.data for one in Entry.of(message).packed(zstd=False).contents}
    return [by_digest[one.digest] for one in beside.references_in(stored(message).stored)]


@pytest.mark.parametrize("zstd", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        user("é" * LARGE),
        user("small", "x" * LARGE, "y" * LARGE, "x" * LARGE),
        tool(tool_result("c", [{"type": "image", "data": IMAGE}, {"type": "text", "text": "seen"}])),
        tool(tool_result("c", ROWS)),
        assistant(tool_use("c", "save", {"rows": ROWS, "name": "n"}), tool_use("d", "save", {"raw": b"\xff" * LARGE})),
        assistant(UnknownPart({"type": "shot", "pair": {"opens": "c"}, "output": {"image_url": IMAGE, "rows": ROWS}})),
        user("x", metadata={"page": "p" * LARGE, "rows": ROWS}, provider_meta={"a": {"b": ["c" * LARGE]}}),
        user("x" * 70_000, extra={"newer": "n" * LARGE}),
    ],
)
def test_a_message_is_whole_again_with_its_contents(message: Message, zstd: bool) -> None:
    found = stored(message, zstd=zstd)
    assert len(found.stored) < 4 * beside.BEGINNING_BYTES
    whole = wire.whole(found, values(message))
    assert type(whole) is Message
    assert replace(whole, sequence=None, timestamp=None) == message
    assert wire.encode_body(replace(whole, sequence=None, timestamp=None)) == wire.encode_body(message)
    assert wire.digest_of(found) == wire.digest_of(message) == wire.digest_of(whole)
    assert count_characters(found) == count_characters(message)
    assert marks(found) == marks(message), "pairs do not need the contents"


def test_only_large_values_leave() -> None:
    for message in (user("x" * (LARGE - 1)), user(*["x" * 1_000] * 100), user("x", scope="dm", trace_id="t" * LARGE)):
        form = Entry.of(message).packed(zstd=False)
        assert (form.contents, form.flags & wire.BESIDE) == ([], 0)


def test_what_stays_is_the_beginning_of_each() -> None:
    found = stored(user("é" * LARGE, metadata={"a": "b"}))
    assert found.text == "é" * (beside.BEGINNING_BYTES // 2), "a text ends between two characters"
    assert found.metadata == {"a": "b"}
    assert stored(tool(tool_result("c", ROWS))).tool_results[0].content == []
    assert "stored" not in repr(found)


def test_one_value_twice_is_one_content() -> None:
    form = Entry.of(user("x" * LARGE, "x" * LARGE)).packed(zstd=False)
    assert len(form.contents) == 1


@pytest.mark.parametrize(
    "message", [user("x" * LARGE), tool(tool_result("c", ROWS)), user(metadata={"b": b"x" * LARGE})]
)
def test_a_lost_content_leaves_a_note(message: Message) -> None:
    whole = wire.whole(stored(message), [None])
    assert "is missing or damaged" in str(whole)
    wire.encode_body(replace(whole, sequence=None, timestamp=None))


def test_a_partial_message_is_never_stored() -> None:
    found = stored(user("x" * LARGE))
    for message in (found, replace(found, metadata={"a": 1})):
        with pytest.raises(InvalidMessageError, match="without its large contents"):
            wire.encode_body(message)


def test_contents_are_checked() -> None:
    [content] = Entry.of(user("x" * LARGE)).packed(zstd=False).contents
    for zstd in (False, True):
        packed = beside.packed(content, zstd=zstd)
        assert beside.unpacked(packed, LARGE, content.digest) == content.data
        for damaged in (None, b"", packed[:-1], packed[:1] + b"y" + packed[2:], b"\2" + packed[1:], packed + b"x"):
            assert beside.unpacked(damaged, LARGE, content.digest) is None


def test_the_caps() -> None:
    with pytest.raises(MessageTooLargeError, match=r"without its values of 32,000 bytes"):
        wire.encode_body(user(*[str(number) + "x" * 30_000 for number in range(200)]))
    text = "x" * 20_000_000
    assert count_characters(user(text)) == count_characters(user(text, "y")) == MAX_CHARACTERS
    assert len(stored(user(text)).stored) < 1_500


def test_a_damaged_table_is_corrupt() -> None:
    member = stored(user("x" * LARGE)).stored
    for damaged in (member[:-1], member[:-2] + b"\xff\xff", member[:8] + member[-2:]):
        with pytest.raises(CorruptDataError):
            wire.decode_member(damaged)
    found = replace(stored(user("x" * LARGE)), stored=member[:-44] + b"\xff" * 4 + member[-40:])
    with pytest.raises(CorruptDataError):
        wire.whole(found, [b"x" * LARGE])


_SIZES = st.sampled_from([0, 10, LARGE - 1, LARGE, LARGE + 40_000])
_LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda size, text: text * (size // len(text.encode())), _SIZES, st.sampled_from(["x", "é", "你好"])),
    st.builds(lambda size: b"\xda" * size, _SIZES),
    st.integers(-5, 5),
    st.none(),
)
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


@settings(max_examples=100, deadline=None)
@given(_VALUES, _VALUES, st.booleans())
def test_any_value_comes_back(content: Any, note: Any, zstd: bool) -> None:
    message = tool(tool_result("c", content), metadata={"note": note})
    form = Entry.of(message).packed(zstd=zstd)
    if form.contents:
        whole = wire.whole(stored(message, zstd=zstd), values(message))
        assert replace(whole, sequence=None, timestamp=None) == message
        assert len(form.body) < 2_000 + 50 * LARGE

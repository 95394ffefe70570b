"""Content that is kept of messages above the cap."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_history import AttachmentPart, Message, ReasoningPart, assistant, text, tool, tool_result, tool_use, user
from redis_history.errors import InvalidMessageError
from redis_history.values import ToolResultPart, UnknownPart, large
from redis_history.values.pairs import open_calls
from redis_history.values.wire import encode_body

MB = 1_000_000


pytestmark = pytest.mark.usefixtures("small_caps")


def test_parts_that_fit_alone_become_several_messages() -> None:
    results = [tool_result(f"c{n}", str(n) * MB, name="read") for n in range(9)]
    message = tool(*results, id="m", metadata={"k": 1}, provider_meta={"form": {"note": 1}})
    pieces, lacks = large.fitted(message)
    assert lacks == []
    assert [part for piece in pieces for part in piece.parts] == results
    assert [piece.id for piece in pieces] == ["m", *(f"m#{n}" for n in range(2, len(pieces) + 1))]
    assert pieces == large.fitted(message).messages, "a repetition has the same ids"
    assert large.joined([user("a"), *pieces, user("b")])[1] == message
    assert pieces[0].metadata == {"k": 1}
    assert large.joined(pieces[1:]) == pieces[1:], "its beginning is not there"


def test_only_what_is_too_large_is_replaced() -> None:
    calls = assistant(tool_use("a", "read", {"path": "x"}), tool_use("b", "write", {"path": "y", "text": "z" * 5 * MB}))
    results = tool(tool_result("a", "x" * 5 * MB, name="read"), tool_result("b", "done"))
    [call], [lack] = large.fitted(calls)
    assert call.tool_uses[0] == calls.tool_uses[0]
    assert call.tool_uses[1].input["path"] == "y"
    assert "5,000,000 bytes is too large to store" in call.tool_uses[1].input["text"]
    assert (lack.part, lack.reason[:15]) == (1, "input of 5,000,")
    [result], [lack] = large.fitted(results)
    assert result.parts[1] == results.parts[1]
    first = result.tool_results[0]
    assert (first.tool_use_id, first.name, first.is_error) == ("a", "read", True)
    assert first.content == "[result of 5,000,000 bytes is too large to store: a message has at most 4,000,000 bytes]"
    assert open_calls([call, result]) == []
    assert lack.part == 0


def test_a_photo_becomes_a_note() -> None:
    photo = AttachmentPart(name="beach.jpg", modality="image", reference="data:image/jpeg;base64," + "/" * 5 * MB)
    [kept], [lack] = large.fitted(user("Look", photo, id="p", metadata={"channel_id": "c"}))
    assert kept.text.startswith("Look\n[image beach.jpg of 5,000,023 bytes is too large to store")
    assert (kept.id, kept.role, kept.metadata) == ("p", "user", {"channel_id": "c"})
    assert "beach.jpg" in lack.reason


def test_an_opaque_part_keeps_its_form() -> None:
    picture = "data:image/png;base64," + "A" * 5 * MB
    shot = {
        "type": "computer_call_output",
        "call_id": "k",
        "output": {"type": "computer_screenshot", "image_url": picture},
    }
    [kept], lacks = large.fitted(assistant(UnknownPart(shot)))
    data: Any = kept.parts[0]
    assert data.data["call_id"] == "k"
    assert data.data["output"]["image_url"].startswith("data:image/png;base64,iVBOR")
    assert lacks[0].reason.startswith("computer_call_output of 5,0")


def test_what_a_message_has_around_is_cut() -> None:
    meta = {
        "adapter": {"entry": {"uuid": "u", "toolUseResult": "r" * 5 * MB}, "packed": "p" * 5 * MB},
        "small": {"a": 1},
    }
    [kept], [lack] = large.fitted(user("Hello", provider_meta=meta))
    assert kept.text == "Hello"
    assert kept.provider_meta["adapter"]["entry"]["uuid"] == "u"
    assert "too large" in kept.provider_meta["adapter"]["entry"]["toolUseResult"]
    assert "packed" not in kept.provider_meta["adapter"]
    assert kept.provider_meta["small"] == {"a": 1}
    assert lack.part is None
    assert large.fitted(user("x", metadata={"k": "m" * 5 * MB})).messages[0].metadata == {}


def test_too_deep_and_too_many_values() -> None:
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    for content in (deep, list(range(150_000))):
        [kept], [lack] = large.fitted(tool(tool_result("a", content), tool_result("b", "ok")))
        assert (kept.tool_results[0].is_error, kept.tool_results[1].content, lack.part) == (True, "ok", 0)
    many = user(*(tool_result(f"c{n}", [1] * 30_000) for n in range(6)))
    pieces, lacks = large.fitted(many)
    assert lacks == []
    assert large.joined(pieces) == [many]
    assert large.fits(large.fitted(many, whole=True).messages[0])


def test_as_one_message() -> None:
    message = tool(tool_result("a", "x" * 3 * MB), tool_result("b", "y" * 2 * MB), tool_result("c", "z"))
    [kept], [lack] = large.fitted(message, whole=True)
    assert lack.part == 0
    assert [part.is_error for part in kept.tool_results] == [True, False, False]


def test_reasoning_stays_with_what_follows() -> None:
    parts = [
        part for n in range(4) for part in (ReasoningPart("why " * 10_000), tool_use(f"c{n}", "f", {"a": "x" * 2 * MB}))
    ]
    pieces, _ = large.fitted(assistant(*parts))
    assert len(pieces) > 1
    assert all(type(piece.parts[0]) is ReasoningPart for piece in pieces)
    assert all(type(piece.parts[-1]) is not ReasoningPart for piece in pieces)


def test_what_can_never_be_stored_is_an_error() -> None:
    with pytest.raises(InvalidMessageError):
        large.fitted(user("\ud800"))


def test_a_long_id() -> None:
    pieces, _ = large.fitted(tool(tool_result("a", "x" * 3 * MB), tool_result("b", "y" * 3 * MB), id="é" * 256))
    assert all(map(large.fits, pieces))
    assert len({piece.id for piece in pieces}) == 2


SIZES = st.sampled_from([10, MB, 2 * MB, 3 * MB, 5 * MB])
PARTS = st.one_of(
    SIZES.map(lambda size: text("t" * size)),
    SIZES.map(lambda size: tool_use("c", "f", {"small": 1, "a": "i" * size})),
    SIZES.map(lambda size: tool_result("c", "r" * size)),
    SIZES.map(lambda size: tool_result("c", [{"type": "text", "text": "r" * size}])),
    SIZES.map(lambda size: AttachmentPart(name="a", reference="https://x/" + "u" * size)),
    SIZES.map(lambda size: UnknownPart({"type": "new", "call_id": "k", "output": ["o" * size]})),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(PARTS, max_size=6), st.booleans())
def test_nothing_else_is_lost(parts: list[Any], whole: bool) -> None:
    message = Message(role="assistant", parts=tuple(parts), id="m", metadata={"k": "v"})
    pieces, lacks = large.fitted(message, whole=whole)
    assert all(len(encode_body(piece)) <= 4 * MB for piece in pieces)
    assert len({piece.id for piece in pieces}) == len(pieces)
    [again] = large.joined(pieces)
    assert (again.id, again.role, again.metadata) == ("m", "assistant", {"k": "v"})
    assert len(again.parts) == len(parts)
    replaced = {lack.part for lack in lacks}
    for at, (before, after) in enumerate(zip(parts, again.parts, strict=True)):
        assert (before == after) == (at not in replaced)
        if isinstance(before, ToolResultPart):
            assert isinstance(after, ToolResultPart)
            assert after.tool_use_id == before.tool_use_id
    if not whole:
        assert replaced == {at for at, part in enumerate(parts) if not large.fits(Message(role="tool", parts=(part,)))}
    assert not whole or len(pieces) == 1

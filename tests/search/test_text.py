"""The searchable text of a message, and its words."""

import base64
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history import (
    AttachmentPart,
    Message,
    Participant,
    ReasoningPart,
    UnknownPart,
    text,
    tool_result,
    tool_use,
    user,
)
from redis_history.store.search.text import MAX_CHARACTERS, chunk_length, index_words, searchable
from redis_history.store.search.words import MAX_WORD, is_unspaced, words

NOISE = base64.b64encode(bytes(range(256)) * 4).decode()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Hello, World!", "hello world"),
        ("snake_case CamelCase a.b/c-d", "snake case camelcase camel case a b c d"),
        ("don’t DON'T", "don t don t"),
        ("ＦＵＬＬ ﬁsh ² Straße İ", "full fish 2 strasse i̇"),
        ("naïve naïve".replace("ï", "i\u0308", 1), "naïve naïve"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("电影院", "电影 影院 院"),
        ("看ABC电影。猫", "看 abc 电影 影 猫"),
        ("한국어 말", "한국 국어 어 말"),
        ("ｶﾀｶﾅ", "カタ タカ カナ ナ"),
        ("一。二、三", "一 二 三"),
        ("nul\0tab\tline\nzero\u200bwidth\u3000wide", "nul tab line zero width wide"),
        ("\ud800lone surrogate", "lone surrogate"),
        ("🙂👍", ""),
        ("", ""),
    ],
)
def test_words(written: str, expected: str) -> None:
    assert " ".join(words(written)) == expected


@given(st.text(st.characters(), max_size=300))
def test_words_have_no_syntax_of_a_server(written: str) -> None:
    for word in words(written):
        assert 1 <= len(word) <= MAX_WORD
        assert all(unicodedata.category(letter)[0] in "LNM" for letter in word)
        assert word.isascii() or len(word) <= 2 or not is_unspaced(word)
        word.encode()


@given(st.text(st.characters(codec="ascii")))
def test_ascii_text_has_the_same_words_on_the_short_path(written: str) -> None:
    assert [*words(written), "é"] == words(written + " é")


def test_every_part_of_a_message_is_searchable() -> None:
    message = Message(
        role="assistant",
        participant=Participant("agent", "a-1", display_name="Ada"),
        parts=(
            text("plain"),
            ReasoningPart("pondering", signature="c2lnbmF0dXJl"),
            tool_use("call-7", "get_weather", {"city": "Oslo", "days": [3, {"unit": "celsius"}], "exact": True}),
            tool_result("call-7", [{"type": "text", "text": "sunny"}, {"deep": {"deeper": 21.5}}]),
            AttachmentPart(id="f-1", name="report.pdf", reference="https://files/f-1", mime_type="application/pdf"),
            UnknownPart({"type": "hologram", "text": "later"}),
        ),
    )
    assert (
        " ".join(index_words(message)) == "ada plain pondering get weather oslo 3 celsius sunny 21 5 report pdf later"
    )
    for hidden in ("c2lnbmF0dXJl", "call", "f-1", "hologram", "application"):
        assert hidden not in searchable(message)


def test_encoded_bytes_are_not_searchable() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": NOISE}}
    for message in (
        user(f"before {NOISE} after"),
        user(f"before data:image/png;base64,{NOISE[:40]} after"),
        Message(role="tool", parts=(tool_result("1", ["before", image, "after"]),)),
        Message(role="tool", parts=(tool_result("1", {"text": "before", "encrypted_content": NOISE, "x": "after"}),)),
    ):
        assert set(index_words(message)) <= {"before", "after", "image", "png"}, message.parts


def test_long_paths_and_digests_are_searchable() -> None:
    path = "/usr/lib/python3/site-packages/redis_history/backends/redis/planner/some_long_module_name.py"
    assert index_words(user(path)) == re.findall(r"[a-z0-9]+", path)
    assert index_words(user("f" * 64)) == ["f" * 64]
    assert index_words(user("f" * 65)) == []


def test_parts_of_identifiers_are_words() -> None:
    assert words("getUserName in HTTPServer") == [
        "getusername",
        "get",
        "user",
        "name",
        "in",
        "httpserver",
        "http",
        "server",
    ]
    for plain in ("snake_case", "HAT136", "2nd", "iOS", "ABC", "Word", "aB"):
        assert words(plain) == plain.lower().replace("_", " ").split()


@given(st.text("aB1_ é", max_size=60))
def test_parts_follow_the_whole(written: str) -> None:
    whole = words(written.lower())
    found = iter(words(written))
    assert all(word in found for word in whole)


def test_a_long_listing_has_each_word_behind_its_beginning_once() -> None:
    listing = tool_result("1", "\n".join(f"file_{n} of the folder" for n in range(3_000)))
    found = index_words(Message(role="tool", parts=(listing,)))
    assert set(found) == {"file", "of", "the", "folder", *map(str, range(3_000))}
    assert len(found) < 6_000


def test_searchable_text_is_bounded() -> None:
    assert len(searchable(user("word " * 50_000))) == MAX_CHARACTERS
    results = tuple(tool_result(str(n), "x" * 10) for n in range(5_000))
    assert len(searchable(Message(role="tool", parts=results))) <= MAX_CHARACTERS
    nested: object = "bottom"
    for _ in range(60):
        nested = [nested]
    assert searchable(Message(role="tool", parts=(tool_result("1", ["top", nested]),))) == "top"


@given(st.text(st.characters(), max_size=2_000))
def test_the_index_has_the_words_of_what_is_searchable(written: str) -> None:
    message = Message(role="user", parts=(text(written),))
    assert index_words(message) == words(searchable(message))


@pytest.mark.parametrize(
    ("sizes", "length"),
    [
        ([], 0),
        ([5, 5, 5], 2),
        ([5, 6], 1),
        ([1, 1, 1, 1], 3),
        ([11], 1),  # at least one, or the work would never end
        ([0, 11], 1),
    ],
)
def test_how_many_texts_are_handled_at_once(sizes: list[int], length: int) -> None:
    assert chunk_length(iter(sizes), 3, 10) == length
    assert chunk_length([MAX_CHARACTERS * 9, 1], 3, MAX_CHARACTERS + 1) == 2, "a search sees only their beginning"

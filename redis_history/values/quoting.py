"""Quotes untrusted text for a model: it must stay data, and no name may imitate another. Pure."""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

import orjson

from redis_history.values.parts import AttachmentPart

#: Characters of a name that are shown, before each message.
MAX_NAME: Final = 80
#: Escaped in data: controls, line breaks that JSON allows, invisible characters and changes of direction, and the
#: beginning of a closing tag.
_HIDDEN: Final = re.compile(
    "[\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]|</"
)
#: A name may contain these in addition to letters, marks and digits of any script. Everything else becomes a blank: a
#: list of all the characters that resemble a colon, a bracket or a quote would never be complete.
_IN_NAMES: Final = frozenset("'-_.@+&#\u2019")
#: Letters that look like a colon.
_COLONS: Final = frozenset("\u02d0\u02d1\ua4fd")
#: Combining marks in a row that are normalized. To sort them takes quadratic time.
_MAX_MARKS: Final = 30
#: Runs that may have more: neither Latin nor Han.
_MARKS: Final = re.compile(f"[^\x00-\u02ff\u3400-\u9fff]{{{_MAX_MARKS + 1},}}")
#: Marks only after normalization.
_LATE_MARKS: Final = frozenset("\u0f73\u0f75\u0f81\uff9e\uff9f")


def normalized(text: str) -> str:
    """The text in NFKC, in linear time: of more than 30 combining marks in a row the first 30 stay."""
    return text if text.isascii() else unicodedata.normalize("NFKC", _MARKS.sub(_fewer_marks, text))


def _fewer_marks(run: re.Match[str]) -> str:
    kept, marks = [], 0
    for letter in run[0]:
        marks = marks + 1 if unicodedata.combining(letter) or letter in _LATE_MARKS else 0
        if marks <= _MAX_MARKS:
            kept.append(letter)
    return "".join(kept)


def plain_name(name: str) -> str:
    """A name on one line, cut, in NFKC, without delimiters, symbols but emoji, and invisible characters; "" if all are
    removed."""
    shown = (letter if _is_in_names(letter) else " " for letter in _HIDDEN.sub(" ", normalized(name[: 4 * MAX_NAME])))
    return " ".join("".join(shown).split())[:MAX_NAME].rstrip()


def file_hint(file: AttachmentPart) -> str:
    """The text in the place of a file that a model does not get. File names come from users."""
    return f"File: {plain_name(file.name or '') or file.modality or 'unnamed'}"


def _is_in_names(letter: str) -> bool:
    if letter.isascii():
        return letter.isalnum() or letter in _IN_NAMES
    if letter in _IN_NAMES:
        return True
    category = unicodedata.category(letter)
    return letter not in _COLONS and (category[0] in "LMN" or (category == "So" and letter >= "\U0001f300"))


def as_data(value: Any) -> str:
    """One line of JSON. Text in it cannot end the line, close a tag, or be invisible."""
    try:
        line = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a lone surrogate, or a number of more than 64 bits
        line = json.dumps(value, default=str)
    return _HIDDEN.sub(_escaped, line)


def new_mark() -> str:
    """A random text for the delimiters of data."""
    return secrets.token_hex(8)


def data_block(name: str, mark: str, lines: Iterable[str]) -> str:
    """Lines from `as_data`, between delimiters."""
    return "\n".join((f"<{name}-{mark}>", *lines, f"</{name}-{mark}>"))


def _escaped(found: re.Match[str]) -> str:
    if found[0] == "</":
        return r"<\/"
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

"""The words of a text, and the languages that are stemmed. Pure. Every append uses it.

RediSearch splits text at ASCII punctuation only and knows no words in Chinese, so text is split here, for the index and
for queries alike: NFKC, case folded, words of letters, digits and marks. Scripts without blanks between words (Han,
kana, hangul, Thai, Lao, Khmer, Myanmar) become overlapping pairs of characters, the last character of a run alone:
"电影院" is "电影 影院 院". So any part of a run is a phrase of pairs, and a single character is the prefix of a pair.
An identifier in CamelCase is followed by its parts: "getUserName" is "getusername get user name".
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import accumulate
from typing import Any, Final

from redis_history.values._validation import check_choice
from redis_history.values.quoting import normalized

#: Longer words are keys, hashes and encoded bytes, not words. A SHA-256 in hex still is one.
MAX_WORD: Final = 64

_ASCII_WORDS: Final = bytes(
    code + 32 if 65 <= code <= 90 else code if 97 <= code <= 122 or 48 <= code <= 57 else 32 for code in range(256)
)
#: Longer words may be encoded bytes.
LONG_WORD: Final = 32
#: Between texts that are split together.
SEPARATOR: Final = "\x1e"
_ASCII_LINES: Final = bytes(30 if code == 30 else letter for code, letter in enumerate(_ASCII_WORDS))
_UNSPACED_RANGES: Final = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1100, 0x11FF), (0x1780, 0x17FF), (0x2E80, 0x2FDF), (0x3005, 0x3007),
    (0x3021, 0x3029), (0x3040, 0x318F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip
# Possessive, so that the time is linear in the length of a run without blanks.
_CAMEL: Final = re.compile(r"(?<![^\W_])(?:[A-Z]*+[a-z0-9]++[A-Z]|[A-Z]{2,}+[a-z]{2})[A-Za-z0-9]*+(?![^\W_])")
# Bytes of the same kind become equal, because a search among bytes takes a fifth of the time of a pattern.
_LETTERS: Final = bytes(letter if letter in (30, 32) else 108 for letter in _ASCII_LINES)
_HUMPS: Final = bytes(85 if 65 <= code <= 90 else kind for code, kind in enumerate(_LETTERS))
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_UNSPACED: Final = re.compile("([" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSPACED_RANGES) + "]+)")


class _Letters(dict[int, int]):
    """For `str.translate`: keeps letters, digits and marks, and replaces others by blanks. Filled on use."""

    def __missing__(self, code: int) -> int:
        category = unicodedata.category(chr(code))
        kept = code if category[0] in "LNM" else 32
        self[code] = kept
        return kept


_letters = _Letters()


def words(text: str) -> list[str]:
    """The normalized words of a text, in order; for a run without blanks its pairs and its last character."""
    found = split_words(text)
    if found and max(map(len, found)) > MAX_WORD:
        found = [word for word in found if len(word) <= MAX_WORD]
    return found


def plain_lines(texts: Sequence[str]) -> list[str | None]:
    """The words of each text, with blanks between and around them; None for a text that needs more than that: it is not
    in ASCII, or has identifiers in CamelCase or words of more than LONG_WORD characters."""
    plain = [text if text.isascii() and SEPARATOR not in text else "" for text in texts]
    joined = f" {SEPARATOR} ".join(plain).encode()
    lower = joined.translate(_ASCII_LINES)
    lines: list[str | None] = list(f" {lower.decode()} ".split(SEPARATOR))
    ends = list(accumulate([len(text) + 3 for text in plain]))
    humps, letters = joined.translate(_HUMPS), joined.translate(_LETTERS)
    for kinds, wanted in ((humps, b"lU"), (humps, b"UUll"), (letters, b"l" * (LONG_WORD + 1))):
        at = kinds.find(wanted)
        while at >= 0:
            line = bisect(ends, at)
            lines[line] = None
            at = kinds.find(wanted, ends[line])
    return [line if part or not text else None for line, part, text in zip(lines, plain, texts, strict=True)]


def split_words(text: str) -> list[str]:
    kinds = text.encode("utf-8", "replace").translate(_HUMPS)
    if b"lU" in kinds or b"UUll" in kinds:
        text = _CAMEL.sub(_with_parts, text)
    if text.isascii():
        return text.encode().translate(_ASCII_WORDS).decode().split()
    text = unicodedata.normalize("NFKC", normalized(text).casefold()).translate(_letters)
    if _UNSPACED.search(text) is None:
        return text.split()
    split: list[str] = []
    for word in text.split():
        for number, piece in enumerate(_UNSPACED.split(word)):
            if number % 2:  # between others: characters of a script without blanks
                split.extend(piece[at : at + 2] for at in range(len(piece)))
            elif piece:
                split.append(piece)
    return split


def _with_parts(identifier: re.Match[str]) -> str:
    """An identifier in CamelCase, followed by its parts of at least two letters, if there are two or more."""
    if len(identifier[0]) > MAX_WORD:
        return identifier[0]
    parts = [part for part in _PART.findall(identifier[0]) if len(part) > 1]
    return " ".join((identifier[0], *parts)) if len(parts) > 1 else identifier[0]


def is_unspaced(word: str) -> bool:
    """Whether a word is a character, or a pair, of a script without blanks."""
    return not word.isascii() and _UNSPACED.match(word) is not None


#: Words are not stemmed: for languages that are not in LANGUAGES, such as Chinese and Japanese.
UNSTEMMED: Final = "none"

_NAMES: Final = """
    arabic armenian danish dutch english finnish french german hungarian indonesian irish italian lithuanian nepali
    norwegian portuguese romanian russian serbian spanish swedish tamil turkish yiddish
"""
#: Languages that RediSearch and Snowball both stem.
LANGUAGES: Final = frozenset(_NAMES.split())

#: Languages in which a word begins as its stem does, but for the last two letters of the stem: "dying" and "die".
PREFIX_KEEPING: Final = frozenset(["english"])

# Forms that no stemmer joins, of verbs and nouns that are not stop words.
_IRREGULAR: Final = """
    begin began begun, bite bit bitten, blow blew blown, break broke broken, bring brought, build built, buy bought,
    catch caught, choose chose chosen, come came, deal dealt, draw drew drawn, drink drank drunk, drive drove driven,
    eat ate eaten, fall fell fallen, feed fed, feel felt, fight fought, find found, fly flew flown,
    forget forgot forgotten, forgive forgave forgiven, freeze froze frozen, get got gotten, give gave given,
    go went gone, grow grew grown, hang hung, hear heard, hide hid hidden, hold held, keep kept, know knew known,
    lead led, leave left, lend lent, lose lost, make made, mean meant, meet met, pay paid, ride rode ridden,
    ring rang rung, rise rose risen, run ran, say said, see saw seen, seek sought, sell sold, send sent, shoot shot,
    sing sang sung, sink sank sunk, sit sat, sleep slept, speak spoke spoken, spend spent, stand stood,
    steal stole stolen, stick stuck, strike struck, swear swore sworn, swim swam swum, take took taken, teach taught,
    tear tore torn, tell told, think thought, throw threw thrown, understand understood, wake woke woken,
    wear wore worn, win won, write wrote written,
    child children, foot feet, knife knives, life lives, man men, mouse mice, person people, tooth teeth,
    wife wives, woman women
"""
_FORMS: Final = {word: group for each in _IRREGULAR.split(",") for group in (tuple(each.split()),) for word in group}


def forms(word: str, language: str) -> tuple[str, ...]:
    """A word and other forms of it that no stemmer finds: for "going" these are "go", "went" and "gone"."""
    if language == "english":
        for stem in (word, word.removesuffix("s"), word.removesuffix("ing"), word.removesuffix("ing") + "e"):
            if stem in _FORMS:
                return tuple(dict.fromkeys((word, *_FORMS[stem])))
    return (word,)


def check_language(language: str) -> str:
    """Return `language`. Raises ConfigurationError unless it is in LANGUAGES or "none"."""
    check_choice(language, "language", (*sorted(LANGUAGES), UNSTEMMED))
    return language


@cache
def load_stemmer(language: str) -> Callable[[str], str] | None:
    """A function from a word to its stem, with a cache; None for UNSTEMMED, and without the extra `search`."""
    if language == UNSTEMMED:
        return None
    try:
        module: Any = import_module("Stemmer")
    except ImportError:
        return None
    # Its own cache is not for several threads.
    stem: Callable[[str], str] = lru_cache(maxsize=65_536)(module.Stemmer(language, 0).stemWord)
    return stem

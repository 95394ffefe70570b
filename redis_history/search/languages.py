"""The languages whose word endings search looks through, their stop words, and the stemmers of the client."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final

from redis_history._validation import check_choice

__all__ = ["LANGUAGES", "UNSTEMMED", "check_language", "load_stemmer", "stop_words"]

#: Text is found word by word, without stemming: for every language not in LANGUAGES, Chinese and Japanese among them.
UNSTEMMED: Final = "none"

_NAMES: Final = """
    arabic armenian danish dutch english finnish french german hungarian indonesian irish italian lithuanian nepali
    norwegian portuguese romanian russian serbian spanish swedish tamil turkish yiddish
"""
#: Languages that RediSearch and Snowball both stem.
LANGUAGES: Final = frozenset(_NAMES.split())

# Words that say how a question is put and nothing of what it is about. Negations and numbers are not among them.
_ENGLISH: Final = """
    a about am an and any are aren as at be been being but by can could couldn d did didn do does doesn doing done for
    from had hadn has hasn have haven having he her hers him his how i if in into is isn it its itself ll m may me might
    my of on or our ours re s shall she should shouldn so some such t than that the their theirs them then there these
    they this those to us ve was wasn we were weren what when where which who whom whose why will with would wouldn you
    your yours
"""
_STOP_WORDS: Final = {"english": frozenset(_ENGLISH.split())}


def check_language(language: str) -> str:
    """Raises ConfigurationError unless it is one of LANGUAGES or "none"."""
    check_choice(language, "language", (*sorted(LANGUAGES), UNSTEMMED))
    return language


def stop_words(language: str) -> frozenset[str]:
    """Words of questions that are not looked for; none but for English, where rareness alone decides."""
    return _STOP_WORDS.get(language, frozenset())


@cache
def load_stemmer(language: str) -> Callable[[str], str] | None:
    """From a word to its stem; None for UNSTEMMED, and without the extra `search`.

    The function keeps what it found.
    """
    if language == UNSTEMMED:
        return None
    try:
        module: Any = import_module("Stemmer")
    except ImportError:
        return None
    # Its own cache is not for several threads.
    stem: Callable[[str], str] = lru_cache(maxsize=65_536)(module.Stemmer(language, 0).stemWord)
    return stem

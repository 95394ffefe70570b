"""The embedder that `embedder="default"` names: WordLlama (the extra `semantic`), which comes with its weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from redis_history.errors import MissingExtraError

#: Numbers of each vector.
DIMENSION: Final = 256


def check_semantic() -> None:
    """Raises MissingExtraError."""
    if find_spec("wordllama") is None:
        raise MissingExtraError(
            "embedder='default' needs a package that is not installed: pip install 'redis_history[semantic]'"
        )


@cache  # half a second
def _model() -> Any:
    import wordllama

    # Its own look for the tokenizer misses the folder in which the package has it.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)


def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
    """The means of the vectors of each text's tokens, of length 1; zeros for a text without any."""
    found: Sequence[Sequence[float]] = _model().embed([text or " " for text in texts], norm=True).tolist()
    return found

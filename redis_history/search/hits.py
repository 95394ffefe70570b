"""What a search gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from redis_history.model import Message
from redis_history.search.highlight import Highlight, Ranges, matching, passage
from redis_history.search.query import Query
from redis_history.tokens import CHARACTERS_PER_TOKEN, TokenCounter, message_tokens, text_tokens

__all__ = ["LEAST", "Reindexed", "SearchHit", "cut_to_tokens", "largest"]

#: Tokens of the shortest excerpt, but for that of the best hit.
LEAST: Final = 25


class SearchHit(Struct, frozen=True):
    """A message that was found. `score` compares within one search only. `before` and `after` are its neighbours, as
    many as the call's `context` says, ascending; they need not match. `archived`: a summary stands for it; then its
    neighbours are archived messages too.

    `excerpt`: the passage that matches, cut to what is left of the `token_cap`, if the message is too long for it; then
    `truncated` is true. Show `excerpt` then: `message` is the whole message, as it is stored."""

    message: Message
    score: float
    conversation_id: str
    highlights: tuple[Highlight, ...] = ()
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()
    archived: bool = False
    excerpt: str | None = None

    @property
    def truncated(self) -> bool:
        """Whether the message is longer than what is left of the cap, so that it comes with an excerpt."""
        return self.excerpt is not None


class Reindexed(Struct, frozen=True):
    """What `reindex` did: conversations looked at, documents written, documents of no message removed."""

    conversations: int
    documents: int
    removed: int


def cut_to_tokens(
    hits: Sequence[SearchHit],
    token_cap: int | None,
    query: Query,
    *,
    language: str = "english",
    counter: TokenCounter | None = None,
) -> list[SearchHit]:
    """The hits, best first, that fit into so many tokens, by `counter` or estimated. None: all. 0: none.

    Messages and neighbours count as in `message_tokens`, an excerpt as a text. Where only the message fits, it comes
    without its neighbours. A message that does not fit comes with an excerpt of its share of what is left, so that it
    does not hide what comes after it; it is skipped if that share is below LEAST tokens. The best hit always comes,
    however short its excerpt, so that a search with matches never looks empty.
    """
    if token_cap is None:
        return list(hits)
    kept: list[SearchHit] = []
    left = token_cap
    for index, hit in enumerate(hits if token_cap else ()):
        alone = message_tokens(hit.message, counter)
        beside = sum(message_tokens(one, counter) for one in (*hit.before, *hit.after))
        if alone + beside <= left:
            kept.append(hit)
            left -= alone + beside
        elif alone <= left:
            kept.append(replace(hit, before=(), after=()))
            left -= alone
        else:
            room = max(left // (len(hits) - index), min(left, LEAST))
            if kept and room < LEAST:
                continue
            excerpt = _excerpt(*matching(hit.message, query, language=language), room, counter)
            if kept and not excerpt:
                continue
            kept.append(replace(hit, before=(), after=(), excerpt=excerpt))
            left -= text_tokens(excerpt, counter)
    return kept


def _excerpt(text: str, ranges: Ranges, tokens: int, counter: TokenCounter | None) -> str:
    if counter is None:
        start, stop = passage(text, ranges, tokens * CHARACTERS_PER_TOKEN)
        return text[start:stop]

    def cut(size: int) -> str:
        return text[slice(*passage(text, ranges, size))]

    return cut(largest(cut, len(text), tokens, counter))


def largest(make: Callable[[int], str], most: int, tokens: int, counter: TokenCounter | None = None) -> int:
    """The largest size up to `most` for which `make` gives a text of at most so many tokens; 0 if there is none.

    It assumes that tokens grow with the size. If they do not, the result still fits, but a larger one may fit too.
    """
    if most and text_tokens(make(most), counter) <= tokens:
        return most
    fits, over = 0, most
    while over - fits > 1:
        size = (fits + over) // 2
        if text_tokens(make(size), counter) <= tokens:
            fits = size
        else:
            over = size
    return fits

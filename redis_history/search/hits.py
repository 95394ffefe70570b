"""What a search gives back."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from redis_history.model import Message
from redis_history.search.highlight import Highlight
from redis_history.tokens import count_characters, estimate_tokens

__all__ = ["Reindexed", "SearchHit", "cut_to_tokens"]


class SearchHit(Struct, frozen=True):
    """A message that was found. `score` compares within one search only. `before` and `after` are its neighbours, as
    many as the call's `context` says, ascending; they need not match. `archived`: a summary stands for it; then its
    neighbours are archived messages too."""

    message: Message
    score: float
    conversation_id: str
    highlights: tuple[Highlight, ...] = ()
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()
    archived: bool = False


class Reindexed(Struct, frozen=True):
    """What `reindex` did: conversations looked at, documents written, documents of no message removed."""

    conversations: int
    documents: int
    removed: int


def cut_to_tokens(hits: Iterable[SearchHit], token_cap: int | None) -> list[SearchHit]:
    """The hits, best first, that fit into so many estimated tokens, their neighbours included. None: all.

    What does not fit in what is left is skipped, so that a long tool result does not hide what comes after it; where
    only the message fits, it comes without its neighbours. If not a single hit fits the best one is given all the same,
    without neighbours: a search that found something does not look like one that found nothing. 0: none.
    """
    if token_cap is None:
        return list(hits)
    kept, left, best = [], token_cap, None
    for hit in hits:
        for one in (hit, replace(hit, before=(), after=())):
            best = best or one
            tokens = sum(estimate_tokens(count_characters(each)) for each in (*one.before, one.message, *one.after))
            if tokens <= left:
                kept.append(one)
                left -= tokens
                break
    if not kept and best is not None and token_cap > 0:
        return [replace(best, before=(), after=())]
    return kept

"""What a search gives back."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

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
    """The hits, best first, that fit into so many estimated tokens, their neighbours included. What does not fit in
    what is left is skipped, so that a long tool result does not hide what comes after it. None: all."""
    if token_cap is None:
        return list(hits)
    kept, left = [], token_cap
    for hit in hits:
        tokens = sum(estimate_tokens(count_characters(one)) for one in (*hit.before, hit.message, *hit.after))
        if tokens <= left:
            kept.append(hit)
            left -= tokens
    return kept

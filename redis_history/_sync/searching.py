# Generated from ../_async by scripts/unasync: do not edit.
"""The search methods of a store. `search/searches.py` has the flow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from redis_history._ids import check_conversation_id
from redis_history._sync._listing import run_steps
from redis_history.backends.base import Backend
from redis_history.model import Role, Scope
from redis_history.requests import Bound, make_filters, make_within
from redis_history.requests.store_options import Options
from redis_history.search.hits import Reindexed, SearchHits
from redis_history.search.searches import Asked, Searcher, Steps
from redis_history.tokens import TokenCounter

T = TypeVar("T")


class Searching:
    """`search`, `search_all` and `reindex` of a store."""

    _backend: Backend
    _options: Options

    def search(
        self,
        conversation_id: str,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        token_cap: int | None = 2000,
        token_counter: TokenCounter | None = None,
        roles: Iterable[Role] | None = None,
        participant_ids: Iterable[str] | None = None,
        scope: Scope | None = None,
        since: Bound | None = None,
        before: Bound | None = None,
        tool_names: Iterable[str] | None = None,
        archived: bool | None = None,
        context: int = 0,
        highlight: bool = False,
    ) -> SearchHits:
        """Messages of one conversation that match any term of `query`, best first.

        A term is a word, a "phrase in quotes" or the beginning of words*; see docs/how-to/search.md. No text makes it
        fail: its first 100,000 characters and 32 different terms count. `limit` hits after the first `offset`, in at
        most `token_cap` tokens (None: no cap), by `token_counter` or estimated: a message that is too long comes with
        the `excerpt` that matches, cut to what fits. The filters must all hold: `roles`, `participant_ids`, `scope`,
        `since` and `before` as in `get`; `tool_names` are tools called or answered. Messages that were compacted are
        found too (`archived`: True for these alone, False for none of them), former summaries are not. With `context`,
        0 to 100, each hit has as many messages before and after it; with `highlight`, where the terms are.

        Without search on the server the newest 20,000 messages are read and ranked here.
        """
        check_conversation_id(conversation_id)
        filters = make_filters(roles, participant_ids, scope, since, before, tool_names, archived)
        asked = Asked(query, filters, limit, offset, token_cap, token_counter, context, highlight)
        return self._run_search(Searcher(self._backend, self._options).search(conversation_id, asked))

    def search_all(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        token_cap: int | None = 2000,
        token_counter: TokenCounter | None = None,
        roles: Iterable[Role] | None = None,
        participant_ids: Iterable[str] | None = None,
        scope: Scope | None = None,
        since: Bound | None = None,
        before: Bound | None = None,
        tool_names: Iterable[str] | None = None,
        archived: bool | None = None,
        context: int = 0,
        highlight: bool = False,
        user_id: int | str | None = None,
        agent_name: str | None = None,
        conversation_ids: Iterable[str] | None = None,
    ) -> SearchHits:
        """Like `search`, over all conversations of the namespace, or over those of the owner `user_id`, of the agent
        `agent_name` (at most the 10,000 that changed last) and among `conversation_ids`. Others are never ranked. What
        was written without search needs `reindex`.

        Without search on the server it reads up to 100 conversations, and raises CapabilityError for more (`memory://`
        searches all). Raises BackendUnavailableError while the server is still filling its index.
        """
        filters = make_filters(roles, participant_ids, scope, since, before, tool_names, archived)
        asked = Asked(query, filters, limit, offset, token_cap, token_counter, context, highlight)
        within = make_within(user_id, agent_name, conversation_ids)
        return self._run_search(Searcher(self._backend, self._options).search_all(within, asked))

    def reindex(self, *, on_progress: Callable[[int, int], object] | None = None) -> Reindexed:
        """Write the search documents of all conversations of the namespace anew, and remove those of no message.

        Needed for what was stored before there was search, or by processes with `search="off"`; a search within such a
        conversation writes its documents by itself. May run while others read and write. `on_progress` gets how many
        conversations are done, and of how many that are known. Raises CapabilityError without search on the server.
        """
        return self._run_search(Searcher(self._backend, self._options).reindex(on_progress))

    def _run_search(self, steps: Steps[T]) -> T:
        return run_steps(self._backend, steps, self._options.embedder)

"""Opens the store of a command. Reports a missing server soon, and keeps the existing search index."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis_history.cli._output import complain, name
from redis_history.cli.commands import FAILED, Context
from redis_history.errors import BackendRefusedError, ConfigurationError, ConversationNotFoundError, RedisHistoryError
from redis_history.store._sync.store import HistoryStore
from redis_history.store.operations.index import read_index_form
from redis_history.store.operations.keys import Keyspace
from redis_history.store.retry import RetryPolicy
from redis_history.store.urls import parse_url
from redis_history.values import Conversation
from redis_history.values.ids import owner_text

AT_ONCE = RetryPolicy(deadline=0)
PATIENCE = RetryPolicy(deadline=2.0)
_LOOKED_AT = 1000  # conversations whose owners are named
_SHOWN = 20


def check_url(context: Context) -> None:
    """Raises ConfigurationError if the URL is invalid, or useless for a command."""
    if parse_url(context.url).scheme == "memory":
        raise ConfigurationError(
            "memory:// stores conversations in one process, so this command would find none. To store conversations "
            "without installing a server, use --url embedded://"
        )


@contextmanager
def connect(context: Context, *, probe: bool = True) -> Iterator[HistoryStore]:
    """A store without search that reports a missing server immediately."""
    check_url(context)
    with HistoryStore(context.url, namespace=context.namespace, retry=AT_ONCE, search="off") as store:
        if probe:
            store.list_conversations(limit=1)
        yield store


@contextmanager
def open_store(context: Context, *, lasting: bool = False, searches: str | None = "off") -> Iterator[HistoryStore]:
    """A store. `lasting`: operations, except for the first connection, wait through a restart of the server.

    `searches`: "off" for commands without search and writes; None to use the index as it is; or its language.
    """
    with connect(context) as first:
        options = {"search": "off"} if searches == "off" else search_options(first, searches)
        retry = None if lasting else PATIENCE
        with HistoryStore(context.url, namespace=context.namespace, retry=retry, **options) as store:
            yield store


def search_options(store: HistoryStore, language: str | None = None) -> dict[str, Any]:
    """The options of a store that uses the existing index of the namespace.

    A store with another language, or without the vectors, would replace the index."""
    backend: Any = store.backend
    keyspace = Keyspace(store.namespace)
    replies = backend.ask([[b"FT.INFO", keyspace.index]])
    if len(replies) > 1 or isinstance(replies[0][0], Exception):  # a cluster; no index, or no search
        return {} if language is None else {"language": language}
    form = read_index_form(keyspace, replies[0][0])
    if form is None:
        complain("the search index of this namespace belongs to another version of redis_history; it is not used")
        return {"search": "off"}
    return {"language": language or form.language, "vectors": form.vectors}


def namespaces(store: HistoryStore, seconds: float = float("inf")) -> dict[str, int]:
    """The number of conversations in each namespace of the server, as far as a scan of its keys gets in this time.

    Expired conversations count until a list finds them gone."""
    backend: Any = store.backend
    end, registries = time.monotonic() + seconds, set[bytes]()
    cursors = [b"0"] * len(backend.ask([[b"PING"]]))  # of each primary
    while cursors and time.monotonic() < end:
        scans = [[b"SCAN", one, b"MATCH", Keyspace.all_registries, b"COUNT", b"10000"] for one in cursors]
        found = [replies[at] for at, replies in enumerate(backend.ask(scans))]
        if refusal := next((one for one in found if isinstance(one, Exception)), None):
            raise BackendRefusedError(f"the server does not list its keys: {refusal}", reason="permission")
        registries.update(key for _, keys in found for key in keys)
        cursors = [cursor for cursor, _ in found]
        if not any(map(int, cursors)):
            break
    counts: Counter[str] = Counter()
    keys = sorted(registries)
    for key, *sizes in zip(keys, *backend.ask([[b"ZCARD", key] for key in keys]), strict=True):
        # In a cluster, the other nodes answer with an error.
        counts[Keyspace.namespace_of(key)] += sum(size for size in sizes if isinstance(size, int))
    return counts


def other_namespaces(store: HistoryStore) -> str:
    """A hint at other namespaces, if this one is empty; otherwise nothing."""
    with suppress(RedisHistoryError):
        if not store.list_conversations(limit=1):
            others = [name(one) for one in sorted(namespaces(store, seconds=2.0)) if one != store.namespace]
            if others:
                return f"Namespaces with conversations: {', '.join(others[:20])}{' …' if others[20:] else ''}"
    return ""


def owner_in(store: HistoryStore, given: int | str | None) -> int | str | None:
    """The owner that an option names. A number also names the owner whose id is this text, which is what sessions and
    JSON often have, unless conversations of the number itself exist."""
    if isinstance(given, int) and not store.count_conversations(user_id=given):
        return str(given) if store.count_conversations(user_id=str(given)) else given
    return given


def check_owner(store: HistoryStore, given: int | str | None, owner: int | str | None) -> None:
    """For an owner of whom nothing was found: reports one without conversations, and exits. `owner`: the owner that
    `given` names."""
    if given is not None and not store.count_conversations(user_id=owner):
        complain(no_such_owner(store, given))
        raise SystemExit(FAILED)


def no_such_owner(store: HistoryStore, user_id: int | str) -> str:
    """The message for an owner without conversations, which names the owners that exist."""
    kinds: list[int | str] = [user_id, str(user_id)] if isinstance(user_id, int) else [user_id]
    shown = " and no owner ".join(name(owner_text(one)) for one in kinds)
    text = f"there is no owner {shown} in the namespace '{name(store.namespace)}'"
    known = {one.user_id: None for one in store.list_conversations(limit=_LOOKED_AT) if one.user_id is not None}
    if not known:
        return f"{text}, where no conversation has an owner. {other_namespaces(store)}".rstrip()
    shown = ", ".join(name(owner_text(one)) for one in [*known][:_SHOWN])
    return f"{text}; owners of the conversations that changed last: {shown}{' …' if len(known) > _SHOWN else ''}"


def existing(store: HistoryStore, conversation_id: str) -> Conversation:
    """The record of a conversation. Raises ConversationNotFoundError, with a hint at a possible reason."""
    if record := store.get_conversation(conversation_id):
        return record
    text = f"there is no conversation '{name(conversation_id[:80])}' in the namespace '{name(store.namespace)}'"
    if store.list_conversations(limit=1):
        raise ConversationNotFoundError(f"{text}; `redis-history ls` lists the existing conversations")
    more = other_namespaces(store)
    raise ConversationNotFoundError(f"{text}, which is empty: name another with --namespace. {more}".rstrip())

"""Opens the store of a command. Reports a missing server soon, and keeps the existing search index."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from redis_history._sync.store import HistoryStore
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.search_index import read_index_form
from redis_history.backends.redis.urls import CLUSTER, SENTINEL, parse_several, parse_url
from redis_history.cli._output import complain, name
from redis_history.cli.commands import Context
from redis_history.errors import BackendUnavailableError, ConfigurationError, ConversationNotFoundError
from redis_history.retry import RetryPolicy

#: For users at a terminal. Long-running commands use the store's default policy once they have connected.
PATIENCE = RetryPolicy(deadline=2.0)
_CONNECT_SECONDS = 0.3  # slower servers are left to the store


def check_url(context: Context) -> None:
    """Raises ConfigurationError if the URL is invalid, or useless for a command."""
    if parse_url(context.url).scheme == "memory":
        raise ConfigurationError(
            "memory:// stores conversations in one process, so this command would find none. To store conversations "
            "without installing a server, use --url embedded://"
        )


def check_listening(url: str) -> None:
    """At a terminal, raises BackendUnavailableError if the addresses of the URL refuse connections. Elsewhere a server
    gets time to start. Raises ConfigurationError for an invalid URL."""
    target = parse_url(url)
    if sys.stderr is None or not sys.stderr.isatty() or target.scheme in ("embedded", "memory"):
        return
    parts = urlsplit(target.url)
    if target.scheme == "unix":
        refusals = [_refusal(unquote(parts.path))]
    elif target.scheme in CLUSTER + SENTINEL:
        refusals = [_refusal(host) for host in parse_several(target.url).hosts]
    else:
        refusals = [_refusal((parts.hostname or "localhost", parts.port or 6379))]
    if all(refusals):
        raise BackendUnavailableError(f"nothing listens at {target.address} ({refusals[0]})")


def _refusal(address: str | tuple[str, int]) -> str | None:
    try:
        if isinstance(address, tuple):
            socket.create_connection(address, _CONNECT_SECONDS).close()
        else:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect(address)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        return error.strerror
    except OSError:
        pass
    return None


@contextmanager
def open_store(context: Context, *, lasting: bool = False, searches: str | None = "off") -> Iterator[HistoryStore]:
    """A store. `lasting`: operations, except for the first connection, wait through a restart of the server.

    `searches`: "off" for commands without search and writes; None to use the index as it is; or its language.
    """
    check_url(context)
    check_listening(context.url)
    with HistoryStore(context.url, namespace=context.namespace, retry=PATIENCE, search="off") as first:
        first.list_conversations(limit=1)
        if searches == "off" and not lasting:
            yield first
            return
        options = {"search": "off"} if searches == "off" else search_options(first, searches)
        retry = None if lasting else PATIENCE
        with HistoryStore(context.url, namespace=context.namespace, retry=retry, **options) as store:
            yield store


def search_options(store: HistoryStore, language: str | None = None) -> dict[str, Any]:
    """The options of a store that uses the existing index of the namespace.

    A store with another language, or without the vectors, would replace the index."""
    backend: Any = store.backend
    [part] = Keyspace(store.namespace).index_parts(cluster=False)
    replies = backend.ask([[b"FT.INFO", part.name]])
    if len(replies) > 1 or isinstance(replies[0][0], Exception):  # a cluster; no index, or no search
        return {} if language is None else {"language": language}
    form = read_index_form(part, replies[0][0])
    if form is None:
        complain("the search index of this namespace belongs to another version of redis_history; it is not used")
        return {"search": "off"}
    return {"language": language or form.language, "vectors": form.vector}


def no_conversation(store: HistoryStore, conversation_id: str) -> NoReturn:
    """Raises ConversationNotFoundError, with a hint at a possible reason."""
    text = f"there is no conversation '{name(conversation_id[:80])}' in the namespace '{name(store.namespace)}'"
    if store.list_conversations(limit=1):
        raise ConversationNotFoundError(f"{text}; `redis-history ls` lists the existing conversations")
    raise ConversationNotFoundError(f"{text}, which is empty: name another with --namespace")

"""`redis-history migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

from redis_history._sync.cluster_backend import ClusterBackend
from redis_history.backends.redis.failures import translate
from redis_history.backends.redis.form1 import Migration, former_names
from redis_history.backends.redis.keys import Keyspace, former_key
from redis_history.cli import _options
from redis_history.cli._output import complain, counted, name, progress
from redis_history.cli._stores import open_store
from redis_history.cli.commands import FAILED, Context, define

_REASONS = {
    "other": "another conversation has its id, or it has changed since it was migrated",
    "unreadable": "it was migrated without messages that cannot be read",
}


@define("migrate")
@click.option("--delete-old", is_flag=True, help="Remove the old data of conversations that are migrated completely.")
@_options.quiet
def migrate_command(context: Context, /, delete_old: bool, quiet: bool) -> None:
    """Migrate a namespace from version 0.1.

    Version 0.2 stores data in another form under other keys. Stop all processes of version 0.1 first. Each conversation
    is migrated as a whole: messages, archives, record, dates and time to live. The command can be interrupted and
    repeated. Subscribers begin anew. Run `redis-history reindex` afterwards to search on the server.
    """
    keyspace = Keyspace(context.namespace)
    done = dict.fromkeys(("migrated", "known", "other", "gone", "unreadable", "messages"), 0)
    with open_store(context, lasting=True) as store, progress("migrating", context, quiet=quiet) as update:
        store.list_conversations(limit=1)  # makes the backend usable
        backend: Any = store.backend
        with _errors(backend):
            found = [(key, one) for key in keyspace.registries() for one in former_names(_client(backend, key), key)]
            for number, (registry, encoded) in enumerate(found):
                update(number, len(found), "conversations")
                migration = Migration(_client(backend, registry), keyspace, encoded)
                outcome = migration.run()
                done[outcome] += 1
                done["messages"] += migration.messages
                done["unreadable"] += migration.unreadable
                if outcome == "other" or migration.unreadable:
                    reason = _REASONS["other" if outcome == "other" else "unreadable"]
                    complain(f"{name(migration.conversation_id)}: {reason}")
                elif delete_old and outcome in ("migrated", "known"):
                    migration.delete_old()
            if delete_old and not any(former_names(_client(backend, key), key) for key in keyspace.registries()):
                _drop_index(backend, former_key(keyspace.index))
    text = f"{counted(done['migrated'], 'conversation')}, {counted(done['messages'], 'message')} migrated"
    rest = {"known": "migrated before", "other": "not migrated", "unreadable": "messages unreadable"}
    context.say("; ".join([text, *(f"{done[one]:,} {what}" for one, what in rest.items() if done[one])]), **done)
    if done["other"] or done["unreadable"]:
        raise SystemExit(FAILED)


def _client(backend: Any, key: bytes) -> Redis:
    """A client of the server that has a key."""
    if isinstance(backend, ClusterBackend):
        return Redis(connection_pool=backend._connections.owner(key_slot(key)).connections.pool)
    client: Redis = backend._server.client
    return client


def _drop_index(backend: Any, alias: bytes) -> None:
    """The former search index, if there is one."""
    client = _client(backend, alias)
    try:
        info = client.execute_command("FT.INFO", alias)
        client.execute_command("FT.DROPINDEX", info[info.index(b"index_name") + 1])
    except ResponseError:  # no search, or no index
        return


@contextmanager
def _errors(backend: Any) -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise translate(error, backend._server.address) from error

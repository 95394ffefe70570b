"""Conversations that another package keeps in Redis, into a file that `import_messages` reads.

    python migrate.py langchain-community redis://localhost:6379/0 old.jsonl

The old server is only read. Conversations keep their names. The ids of messages depend on where they stand, so the file
may be made and imported again: what the store has already is not stored twice.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import redis
from msgspec.structs import replace

from redis_history import HistoryStore, Message
from redis_history.errors import InvalidInputError
from redis_history.formats import from_anthropic, from_langchain, from_openai_responses
from redis_history.importers import export_messages


def langchain_community(client: Any, keys: list[str]) -> list[Message]:
    """A list of JSON, the newest message first. It has no times."""
    return from_langchain([json.loads(item) for item in reversed(client.lrange(keys[0], 0, -1))])


def langchain_redis(client: Any, keys: list[str]) -> list[Message]:
    """A JSON document for each message, with the time by the clock of who wrote it, in seconds."""
    read = [json.loads(item)[0] for item in client.execute_command("JSON.MGET", *keys, "$") if item is not None]
    read.sort(key=lambda one: (one["timestamp"], one.get("message_id", "")))
    for one in read:  # a message's tool calls were not stored, but often what the provider had said of them
        if calls := one["data"]["additional_kwargs"].get("tool_calls"):
            said = [(call["id"], call["function"]) for call in calls]
            one["data"]["tool_calls"] = [
                {"name": call["name"], "args": json.loads(call["arguments"]), "id": id_, "type": "tool_call"}
                for id_, call in said
            ]
    times = [datetime.fromtimestamp(one["timestamp"], UTC) for one in read]
    return [replace(message, timestamp=at) for message, at in zip(from_langchain(read), times, strict=True)]


def openai_agents(client: Any, keys: list[str]) -> list[Message]:
    """A list of JSON, the oldest item first, without times. The items of one reply become one message."""
    return from_openai_responses([json.loads(item) for item in client.lrange(keys[0], 0, -1)])


def agention(client: Any, keys: list[str]) -> list[Message]:
    """JSON of all entries, which have the blocks of Anthropic. It has no times."""
    return from_anthropic(json.loads(client.get(keys[0])))


class Layout(NamedTuple):
    """Keys are `<prefix><conversation><suffix>`; `several`: with a colon and something more for each message. `timed`:
    messages have times."""

    read: Callable[[Any, list[str]], list[Message]]
    kind: str
    prefix: str
    suffix: str = ""
    several: bool = False
    timed: bool = False


LAYOUTS = {
    "langchain-community": Layout(langchain_community, "list", "message_store:"),
    "langchain-redis": Layout(langchain_redis, "ReJSON-RL", "chat:", several=True, timed=True),
    "openai-agents": Layout(openai_agents, "list", "agents:session:", ":messages"),
    "agention": Layout(agention, "string", ""),
}


def conversations(client: Any, layout: Layout) -> Iterator[tuple[str, list[str]]]:
    """The names, and the keys of each."""
    pattern = re.sub(r"([][*?\\])", r"\\\1", layout.prefix) + "*" + layout.suffix
    names: dict[str, list[str]] = {}
    for key in client.scan_iter(match=pattern, count=1000, _type=layout.kind):
        name = key[len(layout.prefix) : len(key) - len(layout.suffix)]
        names.setdefault(name.rpartition(":")[0] if layout.several else name, []).append(key)
    yield from sorted(names.items())


def without_time(line: bytes) -> bytes:
    """So that the server that imports gives the time: the same message with another time would be another one."""
    return json.dumps({**json.loads(line), "timestamp": None}).encode() + b"\n"


def migrate(name: str, client: Any, target: str, prefix: str | None = None) -> Iterator[str]:
    """Write all conversations of a layout to a file. Yields what is left out, and why; last how many there are."""
    layout = LAYOUTS[name] if prefix is None else LAYOUTS[name]._replace(prefix=prefix)
    done = written = 0
    with HistoryStore("memory://", max_messages=None) as memory, Path(target).open("wb") as file:
        for conversation, keys in conversations(client, layout):
            try:
                messages = layout.read(client, keys)
            except (InvalidInputError, ValueError, LookupError, TypeError) as error:
                yield f"{conversation} is left out: {error!r}"
                continue
            for number, message in enumerate(messages, 1):
                id_ = str(uuid5(NAMESPACE_URL, f"{name}:{layout.prefix}{conversation}:{number}"))
                try:
                    memory.append(conversation, replace(message, id=id_))
                except InvalidInputError as error:
                    yield f"message {number} of {conversation} is left out: {error}"
            if memory.get(conversation, limit=1):
                lines = io.BytesIO()
                written += export_messages(memory, lines, conversation_ids=[conversation]).messages
                lines.seek(0)
                file.writelines(lines if layout.timed else map(without_time, lines))
                memory.delete_conversation(conversation)
                done += 1
    yield f"{done} conversations, {written} messages"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layout", choices=LAYOUTS)
    parser.add_argument("url", help="the server with the old conversations")
    parser.add_argument("target", help="the file to write")
    parser.add_argument("--prefix", help="with what the old keys begin, if it is not the package's own default")
    given = parser.parse_args()
    with redis.Redis.from_url(given.url, decode_responses=True) as old:
        for line in migrate(given.layout, old, given.target, given.prefix):
            print(line, file=sys.stderr)

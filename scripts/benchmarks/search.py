"""Search, and the cost of its index."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.timing import STAMP, Report, in_turn, members, messages
from redis_history import HistoryStore, Message, user
from redis_history.store.operations.keys import Keyspace
from redis_history.store.search.redisearch import document
from redis_history.values.wire import encode_body

#: Random words with a natural frequency (Zipf): the n-th word is 1/n as frequent as the first.
WORDS = ["".join(random.Random(n).choices("abcdefghijklmnoprstuvw", k=2 + n % 8)) for n in range(5_000)]
_WEIGHTS = list(itertools.accumulate(1 / (n + 1) for n in range(len(WORDS))))


def bench_search_writes(report: Report, client: Any, url: str, rounds: int) -> None:
    """Appends with and without search documents, alternating, compared with ZADD."""
    with HistoryStore(url, namespace="bench-search", search="require") as store:
        with HistoryStore(url, namespace="bench-search-off", search="off") as silent:
            sent = messages(rounds + rounds // 10)
            stored = members(sent)

            def bare_add(index: int) -> Any:
                return client.zadd("bare", {stored[index]: STAMP + index})

            bare, ours = in_turn(rounds, bare_add, lambda i: store.append("append", sent[i]))
            report.row("append, with an index", "ZADD", ours, bare, "2.0")
            client.unlink("bare")
            bare, ours = in_turn(rounds, bare_add, lambda i: silent.append("append", sent[i]))
            report.row('append, search="off"', "ZADD", ours, bare, "1.4")
            bare, ours = in_turn(
                rounds, lambda i: silent.append("beside", sent[i]), lambda i: store.append("beside", sent[i])
            )
            report.row("append, with an index", 'append, search="off"', ours, bare)
        client.unlink("bare")
        some, rows = messages(500), stored[:500]
        commands = [[b"HSET", b"", b"c", b"0123456789abcdef", b"m", b"%d" % STAMP, *document(one)] for one in some]

        def bare_bulk(index: int) -> None:
            pipe = client.pipeline(transaction=False)
            for place, member in enumerate(rows):
                pipe.zadd(f"bare-{index}", {member: STAMP + place})
            pipe.execute()

        def bare_documents(index: int) -> None:
            pipe = client.pipeline(transaction=False)
            for place, command in enumerate(commands):
                command[1] = b"rhd2:{bench-search:00}:bare:%d:%d" % (index, place)
                pipe.execute_command(*command)
            pipe.execute()

        few = max(rounds // 100, 10)
        bare, ours = in_turn(few, bare_bulk, lambda i: store.append_many(f"bulk-{i}", messages(500)))
        report.row("append_many of 500, with an index", "pipelined ZADD", ours, bare, "2.5")
        bare, ours = in_turn(few, bare_bulk, bare_documents)
        report.row("pipelined HSET of their documents alone", "pipelined ZADD", ours, bare)


def bench_search(report: Report, client: Any, url: str, rounds: int) -> None:
    """Search in a conversation of a small and of a large namespace, alternating; and compared with FT.SEARCH for the
    same words."""
    few = max(rounds // 10, 20)
    chance = random.Random(0)
    asked = [" ".join(chance.sample(WORDS[:300], 3)) for _ in range(few + few // 10)]

    def filled(size: int, **options: Any) -> HistoryStore:
        store = HistoryStore(
            url, namespace=f"bench-search-{size}{'-near' if options else ''}", search="require", **options
        )
        own, others = spoken(0, 600), (size - 600) // 500 + 1
        for number in range(others):  # the messages of the conversation come between those of others, as in practice
            store.append_many("c", own[600 * number // others : 600 * (number + 1) // others])
            store.append_many(f"c{number}", spoken(number + 1, 500))
        return store

    with filled(2_000) as small, filled(2_000, embedder=any_vectors, vectors=256) as near, filled(200_000) as large:
        until_still(client)
        generation = client.hget(Keyspace(small.namespace).conversation("c").state, "i").decode()

        def bare_search(index: int) -> Any:
            words = "|".join(asked[index].split())
            query = f"@c:{{{generation}}} ({words})"
            return client.execute_command(
                *("FT.SEARCH", f"rh2:{small.namespace}", query, "WITHSCORES", "LIMIT", "0", "10", "DIALECT", "2")
            )

        def search(index: int) -> Any:
            return small.search("c", asked[index])

        for name, bare_work in (("PING", lambda _: client.ping()), ("one FT.SEARCH, 10 documents", bare_search)):
            bare, ours = in_turn(few, bare_work, search)
            report.row("search in 600 of 2,000 messages", name, ours, bare)
        bare, ours = in_turn(few, search, lambda index: large.search("c", asked[index]))
        report.row("search in 600 of 200,000 messages", "in 600 of 2,000", ours, bare, "1.5")
        bare, ours = in_turn(few, search, lambda index: near.search("c", asked[index]))
        report.row("search in 600, with vectors of 256 numbers", "by words alone", ours, bare, "2")
        with HistoryStore(url, namespace=small.namespace, search="off") as silent:
            bare, ours = in_turn(max(few // 4, 10), search, lambda index: silent.search("c", asked[index]))
        report.row("the same without an index", "with an index", ours, bare)


def bench_search_memory(report: Report, client: Any, url: str) -> None:
    """The memory of the server for each message, with all its indexes."""
    used: dict[str, int] = {}
    options: dict[str, dict[str, Any]] = {
        "without search": {"search": "off"},
        "with an index": {"search": "require"},
        "with vectors of 256 numbers": {"search": "require", "embedder": any_vectors, "vectors": 256},
    }
    for name, chosen in options.items():
        with HistoryStore(url, namespace=f"bench-memory-{len(used)}", **chosen) as store:
            store.append("warm", user("x"))
            before = used_memory(client)
            for number in range(10):
                for part in range(6):
                    store.append_many(f"c{number}", spoken(number * 6 + part, 100))
            used[name] = round((used_memory(client) - before) / 6_000)
    each = sum(len(encode_body(message)) for message in spoken(1, 100)) // 100
    sizes = ", ".join(f"{size} {name}" for name, size in used.items())
    report.note("server bytes per message, conversations of 600", f"{sizes}; {each} of payload")


def used_memory(client: Any) -> int:
    """Bytes, measured while the server neither frees memory nor writes to disk."""
    until_still(client)
    while client.info("memory")["lazyfree_pending_objects"]:
        time.sleep(0.1)
    memory = client.info("memory")
    return int(memory["used_memory"] - memory["mem_aof_buffer"])  # what waits for a slow disk


def until_still(client: Any) -> None:
    while client.info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.1)


def spoken(seed: int, count: int) -> list[Message]:
    """Messages of about 25 words."""
    chance = random.Random(seed)
    return [user(" ".join(chance.choices(WORDS, cum_weights=_WEIGHTS, k=25))) for _ in range(count)]


def any_vectors(texts: Sequence[str]) -> list[list[float]]:
    return [[random.random() for _ in range(256)] for _ in texts]

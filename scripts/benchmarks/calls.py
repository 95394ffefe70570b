"""Single calls, each compared with the minimum of Redis commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import redis.asyncio

from benchmarks.timing import STAMP, TEXT, Report, Timing, async_in_turn, in_turn, members, messages
from redis_history import (
    AsyncHistoryStore,
    Conversation,
    HistoryStore,
    Participant,
    PromptOptions,
    assemble_prompt,
    capture,
    user,
)
from redis_history.store.operations import GrowReply
from redis_history.store.operations.append import Append
from redis_history.values import TextPart
from redis_history.values.replies import record_of


def bench_append(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    sent = messages(rounds + rounds // 10)
    stored = members(sent)
    for name, count, goal in (("append", rounds, "1.4"), ("append again (duplicate)", rounds // 2, "")):
        bare, ours = in_turn(
            count, lambda i: client.zadd("bare", {stored[i]: STAMP + i}), lambda i: store.append("append", sent[i])
        )
        report.row(name, "ZADD", ours, bare, goal)


#: The commands of an append to an existing conversation, and nothing else.
_COMMANDS = """
redis.call('HMGET', KEYS[1], 'e', 'r', 'q', 't', 'n', 'c', 'k', 'O', 'p', 'F', ARGV[1])
redis.call('TIME')
redis.call('RPUSH', KEYS[3], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[1], 'r', ARGV[5], 'x', ARGV[2], 'u', ARGV[3], 'q', ARGV[5], 't', ARGV[3], 'n', ARGV[5],
           'c', ARGV[5], 'k', ARGV[5], 'F', ARGV[6], ARGV[1], ARGV[6])
redis.call('ZCOUNT', KEYS[4], ARGV[3], '+inf')
redis.call('ZADD', KEYS[4], ARGV[3], 'c')
return ARGV[5]
"""


def bench_append_on_server(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    """The server's own time, beside a script of the same commands."""
    sent = messages(rounds)
    stored = members(sent)
    digest = client.script_load(_COMMANDS)
    keys = ("bare:s", "bare:m", "bare:l", "bare:c")

    def bare(i: int) -> Any:
        args = (b":%12d" % i, b"%12d" % i, STAMP + i, stored[i], i, b"%14d" % i)
        return client.evalsha(digest, len(keys), *keys, *args)

    store.append("append on the server", sent[0])
    timings = Timing(), Timing()
    runs: tuple[Callable[[int], Any], ...] = (bare, lambda i: store.append("append on the server", sent[i]))
    for start in range(1, rounds, rounds // 10):
        for timing, run in zip(timings, runs, strict=True):
            client.config_resetstat()
            for i in range(start, min(rounds, start + rounds // 10)):
                run(i)
            found = client.info("commandstats")["cmdstat_evalsha"]
            timing.values.append(found["usec"] / found["calls"])
    report.row("append, on the server", "a script of its commands", timings[1], timings[0], "2.0")


def bench_read(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    sent = messages(600)
    client.zadd("bare-600", {member: STAMP + i for i, member in enumerate(members(sent))})
    store.append_many("read", sent)
    decode = msgspec.msgpack.Decoder().decode

    def bare_read(_: int) -> Any:
        return [decode(member) for member in client.zrange("bare-600", 0, -1)]

    bare, ours = in_turn(rounds // 10, bare_read, lambda _: store.get("read"))
    report.row("get, 600 messages", "ZRANGE + decode to dicts", ours, bare, "1.3")
    bare, ours = in_turn(rounds, lambda _: client.ping(), lambda _: store.get_message("read", sent[300].id))
    report.row("get_message", "PING", ours, bare)


async def bench_async(report: Report, url: str, rounds: int) -> None:
    """Append and read with asyncio. Needs the conversation of `bench_read`."""
    client: Any = redis.asyncio.Redis.from_url(url)
    sent = messages(rounds)
    stored = members(sent)
    decode = msgspec.msgpack.Decoder().decode

    async def bare_read(_: int) -> Any:
        return [decode(member) for member in await client.zrange("bare-600", 0, -1)]

    async with client, AsyncHistoryStore(url, namespace="bench", search="off") as store:
        bare, ours = await async_in_turn(
            rounds,
            lambda i: client.zadd("bare-async", {stored[i]: STAMP + i}),
            lambda i: store.append("async-append", sent[i]),
        )
        report.row("append (asyncio)", "ZADD", ours, bare, "1.4")
        bare, ours = await async_in_turn(rounds // 10, bare_read, lambda _: store.get("read"))
        report.row("get, 600 messages (asyncio)", "ZRANGE + decode to dicts", ours, bare, "1.5")


def bench_reply(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    """What a live reply sends every 50 ms, beside the commands of a program that appends and publishes."""
    begin = Append.of_reply("reply", "assistant", {"id": "reply"})
    store.backend.execute(begin)
    record = record_of(TextPart(text="some words "))

    def bare_flush(_: int) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.append("bare-reply", record)
        pipe.publish("bare-reply", "1")
        return pipe.execute()

    def flush(index: int) -> Any:
        return store.backend.execute(GrowReply("reply", begin.token, index * len(record), record, False))

    bare, ours = in_turn(rounds, bare_flush, flush)
    report.row("a live reply grows", "pipelined APPEND, PUBLISH", ours, bare, "2.5")


def bench_prompts(report: Report, store: HistoryStore, rounds: int) -> None:
    """Prompts from 600 messages by four people: within the default budget, and with all messages."""
    people = [Participant("user", f"u{number}", f"Person {number}") for number in range(4)]
    store.append_many("prompts", [user(TEXT, participant=people[index % 4]) for index in range(600)])
    all_messages: dict[str, Any] = {"token_budget": None, "rolling_summary_threshold": None}
    for name, changes in (
        ("assemble_prompt, 600 loaded", {}),
        ("the same, all said to the agent", {"addressed_only_mode": False}),
        ("the same, all 600 in the prompt", {"addressed_only_mode": False, **all_messages}),
    ):
        options = PromptOptions(max_turns_to_load=600, **changes)

        def assemble(_: int, options: PromptOptions = options) -> Any:
            return assemble_prompt(store, "prompts", "agent", "The agent", options)

        bare, ours = in_turn(rounds // 10, lambda _: store.get("prompts", limit=600), assemble)
        report.row(name, "get of the same", ours, bare, "2")


def bench_capture(report: Report, store: HistoryStore, rounds: int) -> None:
    def agent(question: str) -> str:
        return question

    recorded = capture(store, "captured")(agent)
    bare, ours = in_turn(rounds // 5, lambda _: store.append("appended", user(TEXT)), lambda _: recorded(TEXT))
    report.row("a captured call, two turns", "append", ours, bare, "2.2")


def bench_batch(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    batches = [messages(500) for _ in range(rounds // 40)]
    stored = members(batches[0])

    def pipelined(index: int) -> None:
        pipe = client.pipeline(transaction=False)
        for place, member in enumerate(stored):
            pipe.zadd(f"bare-batch-{index}", {member: STAMP + place})
        pipe.execute()

    count = len(batches) * 10 // 11
    bare, ours = in_turn(count, pipelined, lambda i: store.append_many(f"batch-{i}", batches[i]))
    report.row("append_many, 500 messages", "pipelined ZADD", ours, bare, "1.2")


def bench_listing(report: Report, client: Any, store: HistoryStore, rounds: int) -> None:
    for number in range(10_000):
        store.create_conversation(Conversation(f"listed-{number}", user_id=f"user {number % 100}"))
    names = {None: "list 50 of 10,000 conversations", "user 7": "list the 50 newest of an owner of 100"}
    for owner, name in names.items():

        def listing(_: int, owner: str | None = owner) -> Any:
            return store.list_conversations(user_id=owner)

        bare, ours = in_turn(max(rounds // 100, 5), lambda _: client.ping(), listing)
        report.row(name, "PING", ours, bare)


def bench_ttl(report: Report, url: str, store: HistoryStore, rounds: int) -> None:
    with HistoryStore(url, namespace=store.namespace, ttl=3600, search="off") as mortal:
        bare, ours = in_turn(
            rounds // 3,
            lambda _: store.append("lasting", user(TEXT)),
            lambda _: mortal.append("mortal", user(TEXT)),
        )
    report.row("append with ttl", "append", ours, bare)

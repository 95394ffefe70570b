"""Promises name tests that exist, and figures that are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from redis_history import RedisHistory, RetryPolicy, requests, tools
from redis_history._async import _lines
from redis_history._ids import MAX_CONVERSATION_ID_BYTES
from redis_history._sync import _connect
from redis_history._sync.reading import PAGE
from redis_history.backends.memory import MemoryBackend
from redis_history.backends.redis import documents, finding, keys, listing, reading, servers, writing
from redis_history.history import _unsent
from redis_history.model import wire
from redis_history.search import query, scan
from redis_history.search import text as search_text
from tests.docs.pages import DOCS, ROOT, prose, rows, sections

GUARANTEES = DOCS / "guarantees.md"
_OPTIONS = requests.Options(1, 1.0)
_MAX_UNSAVED = (RedisHistory.__init__.__kwdefaults__ or {})["max_unsaved"]
_CAPS = MemoryBackend.__init__.__kwdefaults__ or {}
_PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def _tests(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("path", "test"), sorted(set(_PROOF.findall(prose(GUARANTEES)))))
def test_a_proof_exists(path: str, test: str) -> None:
    assert (ROOT / path).is_file()
    assert test in _tests(path)


def test_every_promise_has_a_proof() -> None:
    promises = [row for text in sections(GUARANTEES).values() for row in rows(text) if len(row) == 2]
    assert len(promises) > 30
    for promise, proof in promises:
        assert _PROOF.search(proof), f"no proof for: {promise}"
        assert re.sub(r"[`, ]", "", _PROOF.sub("", proof)) == "", f"something else than tests for: {promise}"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("reference.md", f"at most {requests.MAX_BATCH_MESSAGES:,} messages and {requests.MAX_BATCH_BYTES:,} bytes"),
        ("reference.md", f"at most {requests.MAX_BATCH_MESSAGES:,} ids"),
        ("reference.md", f"1 to {MAX_CONVERSATION_ID_BYTES} bytes of UTF-8, any characters"),
        ("reference.md", f"1 to {wire.MAX_ID_BYTES} bytes of UTF-8, unique"),
        ("reference.md", f"1 to {keys._MAX_NAMESPACE_BYTES} bytes of text"),
        ("reference.md", f"More than {PAGE:,} messages are read in several steps"),
        ("reference.md", f"at most {wire.MAX_MESSAGE_BYTES:,} bytes as stored"),
        ("reference.md", f"{wire.MAX_DEPTH} levels of nesting and {wire.MAX_ITEMS:,} values"),
        ("reference.md", f"A record takes at most {requests.MAX_RECORD_BYTES:,} bytes"),
        ("how-to/conversations.md", f"{requests.MAX_BATCH_MESSAGES:,} messages or {requests.MAX_BATCH_BYTES:,} bytes"),
        ("how-to/expiry.md", f"{_CAPS['max_messages']} messages of each of {_CAPS['max_conversations']} conversations"),
        ("guarantees.md", f"at most {_CAPS['max_conversations']} conversations of {_CAPS['max_messages']} messages"),
        ("data-model.md", f"all {keys.BUCKETS} registries"),
        ("operations.md", f"at most {listing._CHUNK} states, or {keys.BUCKETS} parts of registries"),
        ("guarantees.md", f"for every {finding._SWEEP} conversations"),
        ("operations.md", f"at most {finding._SWEEP} `HMGET`"),
        ("operations.md", f"{keys.BUCKETS} `ZRANGEBYSCORE`, {keys.BUCKETS} `ZCARD`"),
        ("data-model.md", f"newest change of {finding._SWEEP} conversations"),
        ("guarantees.md", f"`get` of more than {PAGE:,} messages"),
        ("how-to/fleets.md", f"{requests.MAX_BATCH_MESSAGES:,} messages or {requests.MAX_BATCH_BYTES:,} bytes"),
        ("how-to/ui.md", f"about {int(reading.CHANGES_BYTES) // 10**6} MB and one change"),
        ("data-model.md", f"modulo {keys.BUCKETS}"),
        ("data-model.md", f"{keys.BUCKETS} registries"),
        ("data-model.md", f"stays for {int(writing.LOG_OUTLIVES_MS) // 1000} seconds"),
        ("data-model.md", f"{wire.DIGEST_BYTES} bytes BLAKE2b"),
        ("guarantees.md", f"its log for {int(writing.LOG_OUTLIVES_MS) // 1000} seconds"),
        ("operations.md", f"| Redis | {servers._MINIMUM['redis'][0]}.{servers._MINIMUM['redis'][1]} |"),
        ("operations.md", f"| Valkey | {servers._MINIMUM['valkey'][0]}.{servers._MINIMUM['valkey'][1]} |"),
        ("operations.md", f"| to connect | {_connect.SOCKET_TIMEOUT:g} |"),
        ("operations.md", f"| to wait for a reply | {_connect.SOCKET_TIMEOUT:g} |"),
        ("operations.md", f"(`RetryPolicy.deadline`) | {RetryPolicy().deadline:g} |"),
        ("operations.md", f"(`first_wait`) | up to {RetryPolicy().first_wait:g} |"),
        ("operations.md", f"(`longest_wait`) | up to {RetryPolicy().longest_wait:g} |"),
        ("operations.md", f"at most {_lines.MOST} for an event loop"),
        ("reference.md", f"the newest {scan.MAX_SCANNED:,} messages are read"),
        ("guarantees.md", f"Its newest {scan.MAX_SCANNED:,} messages are searched"),
        ("how-to/search.md", f"its newest {scan.MAX_SCANNED:,} messages"),
        ("how-to/search.md", f"the first {search_text.MAX_CHARACTERS:,} characters"),
        ("how-to/search.md", f"Words of more than {search_text.MAX_WORD} characters"),
        ("how-to/search.md", f"The first {query.MAX_TERMS} different terms"),
        ("reference.md", f"its first {query.MAX_QUERY_CHARACTERS:,} characters, and {query.MAX_TERMS} different terms"),
        ("reference.md", f"filling a new index after {_OPTIONS.search_wait:g} s"),
        ("operations.md", f"waits up to {_OPTIONS.search_wait:g} s"),
        ("reference.md", f"({tools.DEFAULT_LIMIT} if not given, {tools.MAX_LIMIT} at most)"),
        ("reference.md", f"at most {tools.SHOWN:,} characters"),
        ("how-to/security.md", f"more than {tools.MAX_LIMIT} messages of {tools.SHOWN:,} characters at once"),
        (
            "how-to/security.md",
            f"| {wire.MAX_MESSAGE_BYTES:,} bytes, {wire.MAX_DEPTH} levels, {wire.MAX_ITEMS:,} values |",
        ),
        (
            "how-to/security.md",
            f"| {requests.MAX_BATCH_MESSAGES:,} messages, {requests.MAX_BATCH_BYTES:,} bytes |",
        ),
        ("how-to/security.md", f"| {MAX_CONVERSATION_ID_BYTES} bytes |"),
        ("how-to/security.md", f"| {requests.MAX_RECORD_BYTES:,} bytes |"),
        ("how-to/security.md", f"| {query.MAX_TERMS} terms, in its first {query.MAX_QUERY_CHARACTERS:,} characters |"),
        ("how-to/security.md", f"| {search_text.MAX_CHARACTERS:,} characters |"),
        ("data-model.md", f"and removed together with their documents {int(documents.REAPED)} at a time"),
        ("tutorial.md", f"for up to {RetryPolicy().deadline:g} seconds"),
        ("tutorial.md", f"up to {MAX_CONVERSATION_ID_BYTES} bytes"),
        (
            "how-to/histories.md",
            f"at most `max_unsaved` ({_MAX_UNSAVED:,}) and {_unsent.MAX_UNSAVED_BYTES // 10**6} MB",
        ),
        ("reference.md", f"and at most {_unsent.MAX_UNSAVED_BYTES // 10**6} MB"),
    ],
)
def test_a_figure_is_that_of_the_code(page: str, text: str) -> None:
    assert text in re.sub(r"\s+", " ", prose(DOCS / page))

"""Promises name tests that exist, and figures that are those of the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from redis_history import RedisHistory, RetryPolicy, _words, requests, tools
from redis_history._ids import MAX_CONVERSATION_ID_BYTES
from redis_history._sync import _connect
from redis_history._sync.reading import PAGE
from redis_history.backends.memory import MemoryBackend
from redis_history.backends.redis import keys, plan_listing, plan_reads, plan_writes, server_info
from redis_history.history import _outbox
from redis_history.model import wire
from redis_history.requests.options import Options
from redis_history.search import query, scan
from redis_history.search import text as search_text
from tests.docs.pages import DOCS, ROOT, prose, rows, sections

GUARANTEES = DOCS / "guarantees.md"
SECURITY = DOCS / "how-to" / "security.md"
_OPTIONS = Options(1, 1.0)
_MAX_UNSAVED = (RedisHistory.__init__.__kwdefaults__ or {})["max_unsaved"]
_CAPS = MemoryBackend.__init__.__kwdefaults__ or {}
_PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def _tests(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_proof_exists() -> None:
    proofs = set(_PROOF.findall(prose(GUARANTEES) + prose(SECURITY)))
    assert [(path, test) for path, test in sorted(proofs) if test not in _tests(path)] == []


def _defences() -> dict[str, str]:
    """What the threat model says stops whom, and its proofs."""
    return {f"{who}: {by}": proof for who, _, _, by, proof in rows(sections(SECURITY)["Threat model"]) if by}


def test_every_defence_has_a_proof() -> None:
    defences = _defences()
    assert len(defences) > 15
    for defence, proof in defences.items():
        assert _PROOF.search(proof), f"no proof for: {defence}"
        assert re.sub(r"[`, ]", "", _PROOF.sub("", proof)) == "", f"something else for: {defence}"


def test_every_promise_has_a_proof() -> None:
    promises = [row for text in sections(GUARANTEES).values() for row in rows(text) if len(row) == 2]
    assert len(promises) > 30
    for promise, proof in promises:
        assert _PROOF.search(proof), f"no proof for: {promise}"
        assert re.sub(r"[`, ]", "", _PROOF.sub("", proof)) == "", f"something else than tests for: {promise}"


@pytest.mark.parametrize(
    ("page", "figure"),
    [
        ("reference.md", f"{requests.MAX_BATCH_MESSAGES:,} messages"),
        ("reference.md", f"{requests.MAX_BATCH_BYTES:,} bytes"),
        ("reference.md", f"{requests.MAX_BATCH_MESSAGES:,} ids"),
        ("reference.md", f"{MAX_CONVERSATION_ID_BYTES} bytes"),
        ("reference.md", f"{wire.MAX_ID_BYTES} bytes"),
        ("reference.md", f"{keys._MAX_NAMESPACE_BYTES} bytes"),
        ("reference.md", f"{PAGE:,} messages"),
        ("reference.md", f"{wire.MAX_MESSAGE_BYTES:,} bytes"),
        ("reference.md", f"{wire.MAX_DEPTH} levels"),
        ("reference.md", f"{wire.MAX_ITEMS:,} values"),
        ("reference.md", f"{requests.MAX_RECORD_BYTES:,} bytes"),
        ("how-to/conversations.md", f"{requests.MAX_BATCH_MESSAGES:,} messages"),
        ("how-to/conversations.md", f"{requests.MAX_BATCH_BYTES:,} bytes"),
        ("how-to/expiry.md", f"{_CAPS['max_messages']} messages"),
        ("how-to/expiry.md", f"{_CAPS['max_conversations']} conversations"),
        ("guarantees.md", f"{_CAPS['max_conversations']} conversations"),
        ("guarantees.md", f"{_CAPS['max_messages']} messages"),
        ("data-model.md", f"{keys.BUCKETS} registries"),
        ("operations.md", f"{plan_listing._CHUNK} s"),
        ("operations.md", f"{keys.BUCKETS} parts"),
        ("guarantees.md", f"{plan_listing._SWEEP} conversations"),
        ("operations.md", f"{plan_listing._SWEEP} `HMGET`"),
        ("operations.md", f"{keys.BUCKETS} `ZRANGEBYSCORE`"),
        ("operations.md", f"{keys.BUCKETS} `ZCARD`"),
        ("data-model.md", f"{plan_listing._SWEEP} conversations"),
        ("guarantees.md", f"{PAGE:,} messages"),
        ("how-to/fleets.md", f"{requests.MAX_BATCH_MESSAGES:,} messages"),
        ("how-to/fleets.md", f"{requests.MAX_BATCH_BYTES:,} bytes"),
        ("how-to/ui.md", f"{int(plan_reads.CHANGES_BYTES) // 10**6} MB"),
        ("data-model.md", f"{int(plan_writes.LOG_OUTLIVES_MS) // 1000} s"),
        ("data-model.md", f"{wire.DIGEST_BYTES} bytes"),
        ("guarantees.md", f"{int(plan_writes.LOG_OUTLIVES_MS) // 1000} s"),
        ("operations.md", f"| {server_info._MINIMUM['redis'][0]}.{server_info._MINIMUM['redis'][1]} |"),
        ("operations.md", f"| {server_info._MINIMUM['valkey'][0]}.{server_info._MINIMUM['valkey'][1]} |"),
        ("operations.md", f"| {_connect.SOCKET_TIMEOUT:g} |"),
        ("operations.md", f"| {RetryPolicy().deadline:g} |"),
        ("operations.md", f"{RetryPolicy().first_wait:g} |"),
        ("operations.md", f"{RetryPolicy().longest_wait:g} |"),
        ("reference.md", f"{scan.MAX_SCANNED:,} messages"),
        ("guarantees.md", f"{scan.MAX_SCANNED:,} messages"),
        ("how-to/search.md", f"{scan.MAX_SCANNED:,} messages"),
        ("how-to/search.md", f"{search_text.MAX_CHARACTERS:,} characters"),
        ("how-to/search.md", f"{_words.MAX_WORD} characters"),
        ("how-to/search.md", f"{query.MAX_TERMS} different"),
        ("reference.md", f"{query.MAX_QUERY_CHARACTERS:,} characters"),
        ("reference.md", f"{query.MAX_TERMS} different"),
        ("reference.md", f"{_OPTIONS.search_wait:g} s"),
        ("operations.md", f"{_OPTIONS.search_wait:g} s"),
        ("reference.md", f"{tools.SHOWN:,} characters"),
        ("how-to/security.md", f"{tools.MAX_LIMIT} messages"),
        ("how-to/security.md", f"{tools.SHOWN:,} characters"),
        ("how-to/security.md", f"| {wire.MAX_MESSAGE_BYTES:,} bytes"),
        ("how-to/security.md", f"{wire.MAX_DEPTH} levels"),
        ("how-to/security.md", f"{wire.MAX_ITEMS:,} values"),
        ("how-to/security.md", f"| {requests.MAX_BATCH_MESSAGES:,} messages"),
        ("how-to/security.md", f"{requests.MAX_BATCH_BYTES:,} bytes"),
        ("how-to/security.md", f"| {MAX_CONVERSATION_ID_BYTES} bytes"),
        ("how-to/security.md", f"| {requests.MAX_RECORD_BYTES:,} bytes"),
        ("how-to/security.md", f"| {query.MAX_TERMS} terms"),
        ("how-to/security.md", f"{query.MAX_QUERY_CHARACTERS:,} characters"),
        ("how-to/security.md", f"| {search_text.MAX_CHARACTERS:,} characters"),
        ("tutorial.md", f"{RetryPolicy().deadline:g} s"),
        ("tutorial.md", f"{MAX_CONVERSATION_ID_BYTES} bytes"),
        ("how-to/histories.md", f"{_MAX_UNSAVED:,}"),
        ("how-to/histories.md", f"{_outbox.MAX_UNSAVED_BYTES // 10**6} MB"),
        ("reference.md", f"{_outbox.MAX_UNSAVED_BYTES // 10**6} MB"),
    ],
)
def test_a_figure_is_that_of_the_code(page: str, figure: str) -> None:
    """The number with its unit, in whatever sentence."""
    assert figure in re.sub(r"\s+", " ", prose(DOCS / page))

"""Which node has which key, from what nodes say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError

from redis_history.backends.redis.calls import Settings
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.slots import Address, Topology, read_slots, redirected_to, slot_of
from redis_history.operations import ReadConversation, ReadHead, ReadPage
from tests.support.steps import first_call

ASKED = Address("asked", 7000)


def same(host: str, port: int) -> tuple[str, int]:
    return host, port


def test_slots_and_their_owners() -> None:
    reply = [
        [0, 100, [b"a", 1, b"id"], [b"b", 2, b"id"]],
        [101, 16383, [b"::1", 3, b"id", [b"hostname", b"c"]]],
    ]
    topology = read_slots(reply, ASKED, same)
    assert [topology.owner(slot) for slot in (0, 100, 101, 16383)] == [("a", 1), ("a", 1), ("::1", 3), ("::1", 3)]
    assert topology.primaries == {("a", 1), ("::1", 3)}
    assert topology.nodes == {("a", 1), ("b", 2), ("::1", 3)}


def outside(host: str, port: int) -> tuple[str, int]:
    return "outside", port + 1


@pytest.mark.parametrize(
    ("host", "remap", "address"),
    [
        *((unknown, same, ("asked", 7001)) for unknown in (None, b"", "")),
        (b"::1", same, ("::1", 7001)),
        (b"10.0.0.1", outside, ("outside", 7002)),
    ],
)
def test_addresses_of_nodes_and_redirections(host: bytes | str | None, remap: Any, address: tuple[str, int]) -> None:
    """A node without a name has the address that was asked."""
    assert read_slots([[0, 16383, [host, 7001]]], ASKED, remap).owner(5) == address
    name = host.decode() if isinstance(host, bytes) else host or ""
    for kind in (AskError, MovedError):
        assert redirected_to(kind(f"5 {name}:7001"), ASKED, remap) == address


@pytest.mark.parametrize("owners", [[], [[0, 4, [b"a", 1]]]])
def test_a_slot_without_a_node(owners: list[object]) -> None:
    topology = read_slots(owners, ASKED, same)
    assert isinstance(topology, Topology)
    with pytest.raises(ClusterDownError, match="slot 5"):
        topology.owner(5)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=50))
def test_the_slot_of_a_call_is_that_of_its_keys(namespace: str, conversation_id: str) -> None:
    settings = Settings(Keyspace(namespace), 1000)
    slot = key_slot(settings.keyspace.conversation(conversation_id).state)
    for op in (ReadHead(conversation_id), ReadConversation(conversation_id), ReadPage(conversation_id, 5, newest=True)):
        assert slot_of(first_call(op, settings)) == slot

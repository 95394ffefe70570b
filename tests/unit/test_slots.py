"""Which node has which key, from what nodes say."""

from __future__ import annotations

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


@pytest.mark.parametrize("host", [None, b"", ""])
def test_a_node_without_a_name_is_where_it_was_asked(host: bytes | str | None) -> None:
    assert read_slots([[0, 16383, [host, 7001]]], ASKED, same).owner(5) == ("asked", 7001)


def test_addresses_are_those_to_be_used_here() -> None:
    topology = read_slots([[0, 16383, [b"10.0.0.1", 7001]]], ASKED, lambda host, port: ("outside", port + 1))
    assert topology.nodes == {("outside", 7002)}
    error = MovedError("5 10.0.0.1:7001")
    assert redirected_to(error, ASKED, lambda host, port: ("outside", port + 1)) == ("outside", 7002)


@pytest.mark.parametrize("owners", [[], [[0, 4, [b"a", 1]]]])
def test_a_slot_that_nobody_serves(owners: list[object]) -> None:
    topology = read_slots(owners, ASKED, same)
    assert isinstance(topology, Topology)
    with pytest.raises(ClusterDownError, match="slot 5"):
        topology.owner(5)


@pytest.mark.parametrize(
    ("said", "address"),
    [("5 host:7001", ("host", 7001)), ("5 ::1:7001", ("::1", 7001)), ("5 :7001", ("asked", 7001))],
)
def test_redirections(said: str, address: tuple[str, int]) -> None:
    assert redirected_to(AskError(said), ASKED, same) == address


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=50))
def test_a_call_is_of_the_slot_of_its_keys(namespace: str, conversation_id: str) -> None:
    settings = Settings(Keyspace(namespace), 1000)
    slot = key_slot(settings.keyspace.conversation(conversation_id).state)
    for op in (ReadHead(conversation_id), ReadConversation(conversation_id), ReadPage(conversation_id, 5, newest=True)):
        assert slot_of(first_call(op, settings)) == slot

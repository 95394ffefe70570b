"""Keys: exactly one for each id, and all keys of a conversation in one cluster slot."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.errors import ConfigurationError
from redis_history.store.operations.keys import BUCKETS, ConversationKeys, Keyspace
from tests.property.strategies import conversation_ids, namespaces

SAFE = re.compile(rb"rh2:\{[A-Za-z0-9._~%-]+:[0-9a-f]{2}\}:[A-Za-z0-9._~%-]+(:[sml])?")
#: Ids made of what means something to Redis, to globs, to URLs or to the encoding itself.
nasty = st.text("{}:*?[]^\\% /.-_~\n\r\t\x00%2C25abcmls\u00e9", min_size=1, max_size=12)
ids = conversation_ids | nasty
spaces = namespaces | nasty


def own(keys: ConversationKeys) -> tuple[bytes, bytes, bytes]:
    return keys.state, keys.messages, keys.log


def hash_tag(key: bytes) -> bytes:
    """What Redis Cluster hashes of a key: between the first brace and the next closing one."""
    start = key.index(b"{")
    end = key.index(b"}", start)
    assert end > start + 1
    return key[start + 1 : end]


@pytest.mark.proves("isolated")
@given(spaces, spaces, ids, ids)
def test_no_two_conversations_share_a_key(namespace: str, other: str, one: str, two: str) -> None:
    keys, its = Keyspace(namespace).conversation(one), Keyspace(other).conversation(two)
    if (namespace, one) == (other, two):
        assert keys == its
    else:
        assert not set(own(keys)) & set(own(its))
    assert len({*own(keys), keys.registry}) == 4
    assert keys.registry not in own(its)


@pytest.mark.proves("cluster", "isolated")
@given(spaces, ids)
def test_keys_of_any_names(namespace: str, conversation_id: str) -> None:
    """They are safe, in one slot, and the name gives back the id, so that no two ids have one name."""
    keyspace = Keyspace(namespace)
    keys = keyspace.conversation(conversation_id)
    for key in (*own(keys), keys.registry):
        assert SAFE.fullmatch(key)
        assert key.count(b"{") == key.count(b"}") == 1
    assert len({hash_tag(key) for key in (*own(keys), keys.registry)}) == 1
    assert keys.registry in keyspace.registries()
    assert len(set(keyspace.registries())) == BUCKETS
    assert Keyspace.name_to_id(keys.name) == conversation_id
    assert keys.name in keys.state


def globbed(pattern: bytes, key: bytes) -> bool:
    """As Redis matches, with the two wildcards that may occur."""
    assert not re.search(rb"[\[\]\\^]", pattern)
    expression = b"".join(
        {b"*": b".*", b"?": b"."}.get(part, re.escape(part)) for part in re.split(rb"([*?])", pattern)
    )
    return re.fullmatch(expression, key, re.DOTALL) is not None


@given(spaces, spaces, ids)
def test_a_pattern_is_of_one_namespace(namespace: str, other: str, conversation_id: str) -> None:
    keyspace, foreign = Keyspace(namespace), Keyspace(other)
    keys = keyspace.conversation(conversation_id)
    found, foreign_found = keyspace.patterns, foreign.patterns
    for pattern, foreign_pattern, own_keys in (
        (found[0], foreign_found[0], (*own(keys), *keyspace.registries(), *keyspace.pending_work())),
        (found[1], foreign_found[1], (keyspace.documents_of(conversation_id, b"0" * 16) + b"1",)),
    ):
        for key in own_keys:
            assert globbed(pattern, key)
            assert globbed(foreign_pattern, key) == (namespace == other)


@given(spaces, spaces, ids, st.integers(1, 2**53))
def test_the_message_of_a_document_key(namespace: str, other: str, conversation_id: str, sequence: int) -> None:
    keyspace, foreign = Keyspace(namespace), Keyspace(other)
    key = keyspace.documents_of(conversation_id, b"0123456789abcdef") + b"%d" % sequence
    assert keyspace.document_of(key) == ((conversation_id, b"0123456789abcdef"), sequence)
    if namespace != other:
        assert foreign.document_of(key) is None
    for wrong in (key[:-1] + b"x", key + b":1", key.replace(b":", b"", 1), b"rh2:" + key, key[: key.rindex(b":") + 1]):
        assert keyspace.document_of(wrong) is None


@pytest.mark.parametrize(
    ("namespace", "conversation_id", "state"),
    [
        ("default", "c", b"rh2:{default:2f}:c:s"),
        ("team a/b", "room:{1}*", b"rh2:{team%20a%2Fb:12}:room%3A%7B1%7D%2A:s"),
        ("n", "caf\u00e9 \u4f60", b"rh2:{n:17}:caf%C3%A9%20%E4%BD%A0:s"),
    ],
)
def test_the_spelling_of_keys_never_changes(namespace: str, conversation_id: str, state: bytes) -> None:
    """Another spelling would lose every stored conversation."""
    keys = Keyspace(namespace).conversation(conversation_id)
    assert keys.state == state
    assert (keys.messages, keys.log) == (state[:-1] + b"m", state[:-1] + b"l")
    assert keys.registry == state[: state.index(b"}") + 1] + b":c"


@pytest.mark.parametrize("namespace", ["", "x" * 129, "\u00e9" * 65, None, 5, b"n", "\ud800", ["n"]])
def test_invalid_namespaces(namespace: Any) -> None:
    with pytest.raises(ConfigurationError):
        Keyspace(namespace)

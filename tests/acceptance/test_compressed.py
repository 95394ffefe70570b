"""Messages that are stored compressed."""

import pytest

from redis_history import HistoryStore, tool_result, user
from redis_history.errors import MessageConflictError
from redis_history.store.operations.keys import Keyspace
from redis_history.values import Message
from tests.support.servers import RealServer

pytest.importorskip("zstandard")

LONG = "to be or not to be, that is the question. " * 100


def sent(text: str = LONG) -> list[Message]:
    return [user("short", id="s"), user(text, id="m" * 40), user(tool_result("c", {"text": text}), id="t")]


def test_compressed_messages_are_equal_to_uncompressed_ones(server: RealServer, namespace: str) -> None:
    """Repeated by a store with another option, or another release of zstd, they are duplicates."""
    with (
        HistoryStore(server.url, namespace=namespace) as plain,
        HistoryStore(server.url, namespace=namespace, codec="zstd") as compressing,
    ):
        for conversation_id, first, second in (("p", plain, compressing), ("z", compressing, plain)):
            stored = [one.message for one in first.append_many(conversation_id, sent())]
            assert all(one.duplicate for one in second.append_many(conversation_id, sent()))
            assert all(one.duplicate for one in first.append_many(conversation_id, sent()))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("redis_history.values._zstd._LEVEL", 19)
                assert all(one.duplicate for one in compressing.append_many(conversation_id, sent()))
            for store in (plain, compressing):
                assert store.get(conversation_id) == stored
                for other in sent(LONG + "!")[1:]:
                    with pytest.raises(MessageConflictError):
                        store.append(conversation_id, other)
                again = store.update_message(conversation_id, stored[1])
                assert again.revision == 1
            store.compact(conversation_id, through=stored[1], summary=LONG)
            assert store.get(conversation_id, include_archived=True)[:2] == stored[:2]
    with server.client() as client:
        keys = {one: Keyspace(namespace).conversation(one) for one in "pz"}
        archived = {one: client.keys(of.state[:-1] + b"a:*") for one, of in keys.items()}
        size = {one: sum(map(client.memory_usage, [keys[one].messages, *archived[one]])) for one in keys}
    assert size["z"] < size["p"] / 3

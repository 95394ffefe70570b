"""Search with a real embedder finds what its words alone do not.

The embedder needs no model: it counts the pieces of words, three to five letters long. It finds other spellings and
parts of words, not meanings.
"""

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from typing import Any
from zlib import crc32

import pytest

from redis_history import AsyncHistoryStore, HistoryStore, user
from redis_history.errors import ConfigurationError, MissingExtraError
from redis_history.store.operations.keys import Keyspace
from tests.conftest import Servers
from tests.support.servers import RealServer, wait_until

SAID = {
    "umbrella": "I left my umbrella in the restaurant",
    "booking": "The reservation for tomorrow is confirmed",
    "luggage": "My luggage was damaged on the flight",
    "kitten": "We adopted a kitten last week",
    "fridge": "The refrigerator makes a strange noise",
    "survey": "Please send the questionnaire to all participants",
    "german": "Mein Regenschirm ist kaputt",
}
ASKED = {
    "umbrela": "umbrella",
    "resturant": "umbrella",
    "reservaton": "booking",
    "lugage": "luggage",
    "kittne": "kitten",
    "refridgerator": "fridge",
    "questionaire": "survey",
    "Schirm": "german",
}
DIMENSION = 512


def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
    return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    vector = [0.0] * DIMENSION
    for word in re.findall(r"\w+", text.lower()):
        whole = f" {word} "
        for size in (3, 4, 5):
            for start in range(len(whole) - size + 1):
                code = crc32(whole[start : start + size].encode())
                vector[code % DIMENSION] += 1 if code & 0x10000 else -1  # pieces with one place do not add up
    return vector


async def embed_elsewhere(texts: Sequence[str]) -> Sequence[Sequence[float]]:
    return await asyncio.to_thread(embed, texts)


def ids(hits: list[Any]) -> list[str]:
    return [hit.message.id for hit in hits]


@pytest.mark.proves("embedders")
def test_vectors_find_what_words_do_not(server: RealServer, namespace: str, server_of: Servers) -> None:
    with HistoryStore(server.url, namespace=namespace, embedder=embed, vectors=DIMENSION) as store:
        store.append_many("c", [user(text, id=name) for name, text in SAID.items()])
        store.append("other", user("umbrela resturant reservaton lugage kittne Schirm", id="not of this conversation"))
        for query, name in ASKED.items():
            assert ids(store.search("c", query, limit=1)) == [name], query
        for query, name in ASKED.items():
            assert name in ids(store.search_all(query, limit=2)), query
        both = store.search("c", "kitten questionaire", limit=2)
        assert set(ids(both)) == {"kitten", "survey"}, "one by its word, one by its vector"
    with HistoryStore(server.url, namespace=f"{namespace}-words") as words:
        words.append_many("c", [user(text, id=name) for name, text in SAID.items()])
        for query in ASKED:
            assert words.search("c", query) == []
    server_of.clear(f"{namespace}-words")


async def test_filters_and_changes_with_vectors(server: RealServer, namespace: str) -> None:
    async with AsyncHistoryStore(server.url, namespace=namespace, embedder=embed_elsewhere, vectors=DIMENSION) as store:
        await store.append_many("c", [user(text, id=name) for name, text in SAID.items()])
        assert await store.search("c", "umbrela", roles=["tool"]) == []
        assert ids(await store.search("c", "umbrela", limit=1)) == ["umbrella"]
        await store.update_message("c", user("I found it", id="umbrella"))
        assert ids(await store.search("c", "Schirm", limit=1)) == ["german"]
        assert ids(await store.search("c", "umbrela", limit=1)) != ["umbrella"], "its vector is of its content now"
        await store.delete_messages("c", ["german"])
        assert "german" not in ids(await store.search("c", "Schirm"))
        async with AsyncHistoryStore(server.url, namespace=namespace, vectors=DIMENSION) as without:
            await without.append("c", user("resturant", id="later"))
        assert ids(await store.search("c", "restaurant", limit=1)) != ["later"], "it has no vector"
        await store.reindex()
        assert ids(await store.search("c", "restaurant", limit=1)) == ["later"]


@pytest.mark.parametrize("query", ["我想订房间", "住宿 价格", "бронь", "отель hotel", "호텔"])
def test_the_default_embedder_leaves_other_scripts_to_their_words(
    server: RealServer, namespace: str, server_of: Servers, query: str
) -> None:
    """Its model knows the pieces of their words by chance: an embedder never makes a search worse."""
    texts = [
        "我想订一个房间",
        "住宿的价格是多少？",
        "这家饭店很好吃",
        "天气很好",
        "Моя бронь готова",
        "Отель у моря",
        "호텔 예약",
    ]
    with (
        HistoryStore(server.url, namespace=namespace, embedder="default") as meant,
        HistoryStore(server.url, namespace=f"{namespace}-words") as words,
    ):
        found = []
        for store in (meant, words):
            store.append_many("c", [user(text, id=str(number)) for number, text in enumerate(texts)])
            found.append(store.search("c", query))
    server_of.clear(f"{namespace}-words")
    assert ids(found[0]) == ids(found[1])


@pytest.mark.proves("embedders")
async def test_the_default_embedder_finds_what_shares_no_word(server: RealServer, namespace: str) -> None:
    said = ["The dog ate my sandwich.", "We booked a hotel in Rome.", "The stock market fell today.", ""]
    async with AsyncHistoryStore(server.url, namespace=namespace, embedder="default") as store:
        await store.append_many("c", [user(text, id=str(n)) for n, text in enumerate(said)])
        for question, found in (
            ("a puppy was hungry", "0"),
            ("vacation accommodation", "1"),
            ("shares lost value", "2"),
        ):
            assert [hit.message.id for hit in await store.search("c", question, limit=1)] == [found]
    with pytest.raises(ConfigurationError, match="256"):
        HistoryStore(server.url, embedder="default", vectors=3)


def test_the_default_embedder_is_an_extra(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_history.store.operations.options.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=re.escape("redis_history[semantic]")):
        HistoryStore(server.url, embedder="default")


@pytest.mark.proves("embedders")
def test_words_are_found_while_the_index_with_vectors_is_made(server: RealServer, namespace: str) -> None:
    words = [user(f"about word{number}", id=str(number)) for number in range(1000)]
    with HistoryStore(server.url, namespace=namespace) as store:
        for conversation in range(4):
            store.append_many(f"c{conversation}", words)
    with HistoryStore(server.url, namespace=namespace, embedder=embed, vectors=DIMENSION) as store:
        assert ids(store.search("c0", "word7", limit=1)) == ["7"]
        assert ids(store.search_all("word7", limit=1, conversation_ids=["c0"])) == ["7"]


@pytest.mark.proves("embedders")
@pytest.mark.parametrize("every", [False, True], ids=["one", "all"])
def test_another_store_makes_the_index_without_vectors(server: RealServer, namespace: str, every: bool) -> None:
    with (
        HistoryStore(server.url, namespace=namespace, embedder=embed, vectors=DIMENSION) as store,
        HistoryStore(server.url, namespace=namespace) as other,
    ):
        search = store.search_all if every else partial(store.search, "c")
        store.append_many("c", [user(text, id=name) for name, text in SAID.items()])
        assert ids(search("kittne", limit=1)) == ["kitten"]
        with server.client() as client:
            index = partial(client.execute_command, "FT.INFO", Keyspace(namespace).index)
            with_vectors = "FLOAT16" in str(index())
            wait_until(lambda: other.search("c", "kitten") and "FLOAT16" not in str(index()), "the other index")
        assert with_vectors
        assert ids(search("kitten", limit=1)) == ["kitten"]
        wait_until(lambda: ids(search("kittne", limit=1)) == ["kitten"], "the vectors to be found again")

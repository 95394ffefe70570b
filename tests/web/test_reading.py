"""Reading over HTTP: conversations, messages, originals of summaries, search."""

from base64 import b64encode, urlsafe_b64encode
from typing import Any
from urllib.parse import quote

import pytest

from redis_history import (
    AttachmentPart,
    Conversation,
    Participant,
    ReasoningPart,
    Source,
    __version__,
    assistant,
    system,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.web import allow_all
from redis_history.web.routing import API
from tests.support.servers import until
from tests.support.web import at, client

ODD = "a/b ..\\?&=#%\n\x00\u202e😀"


def ids(page: Any) -> list[str]:
    return [one["id"] for one in page.get("messages", page.get("conversations"))]


async def test_conversations(web: Any, store: Any, namespace: str) -> None:
    status = (await web.get("v1/status")).json()
    assert (status["version"], status["namespace"], status["read_only"]) == (__version__, namespace, True)
    assert status["capabilities"]["search"] == "server"
    assert status["summary_prefix"] == "[Earlier conversation summary: "
    for name in ("one", "two", "three"):
        await store.create_conversation(Conversation(name, user_id="u", agent_name="a" if name == "two" else None))
    await store.create_conversation(Conversation(ODD, title="T", metadata={"k": [1]}))
    await store.append("one", user("Hello", participant=Participant("user", "u1", "Ann")))
    page = (await web.get("v1/conversations", params={"limit": 3, "last": 1})).json()
    assert ids(page) == ["one", ODD, "three"]
    newest = page["conversations"][0]
    assert (newest["message_count"], newest["characters"], newest["estimated_tokens"]) == (1, 5, 2)
    assert newest["last"].pop("timestamp") <= newest["updated_at"]
    assert newest["last"] == {"role": "user", "name": "Ann", "text": "Hello"}
    assert newest["updated_at"].endswith("Z")
    rest = (await web.get("v1/conversations", params={"limit": 3, "cursor": page["next"]})).json()
    assert (ids(rest), rest["next"], rest["total"], page["total"]) == (["two"], None, 4, 4)
    both = (await web.get("v1/conversations", params={"agent_name": "a", "user_id": "u"})).json()
    assert both["total"] is None, "it would take a read of all of them"
    assert ids((await web.get("v1/conversations", params={"agent_name": "a"})).json()) == ["two"]
    found = (await web.get(at(ODD))).json()
    assert (found["id"], found["title"], found["metadata"], found["revision"]) == (ODD, "T", {"k": [1]}, 1)
    assert found["cursor"] == str((await store.snapshot(ODD)).cursor)
    missing = await web.get(at("nobody"))
    assert missing.headers["content-type"] == "application/problem+json"
    problem = missing.json()
    assert problem.pop("detail")
    assert problem == {"type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found"}


async def test_owners_are_numbers_or_texts(web: Any, store: Any) -> None:
    for name, owner in (("int", 1), ("str", "1"), ("zero", 0), ("name", "ann")):
        await store.create_conversation(Conversation(name, user_id=owner, auditing_id=owner))
    for text, names in (("1", ["int"]), ('"1"', ["str"]), ("0", ["zero"]), ("ann", ["name"]), ("01", [])):
        assert ids((await web.get("v1/conversations", params={"user_id": text})).json()) == names


async def test_every_part_of_a_message(web: Any, store: Any) -> None:
    file = {"id": "f", "name": "a.pdf", "size": 3, "modality": "document", "mime_type": "application/pdf"}
    message = assistant(
        "Look:",
        ReasoningPart("hm", signature="secret", provider_meta={"secret": 1}),
        tool_use("t1", "find", {"q": "x", "bytes": b"\x00\xff"}),
        AttachmentPart(reference="r", **file),  # type: ignore[arg-type]
        {"type": "text", "text": "there"},
        id="m1",
        participant=Participant("agent", "bot", "Bot"),
        scope="dm",
        metadata={"thread_id": "t"},
        sources=[Source("d", "Doc", "chunk", 0.5)],
        trace_id="trace",
        provider_meta={"secret": 1},
    )
    await store.append_many("c", [message, tool(tool_result("t1", {"rows": [1, 2]}, True, name="find"), id="m2")])
    first, second = (await web.get(at("c", "messages"))).json()["messages"]
    assert first["parts"] == [
        {"type": "text", "text": "Look:"},
        {"type": "reasoning", "text": "hm"},
        {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": "x", "bytes": {"&bytes": "AP8="}}},
        {"type": "attachment", "reference": "r", **file},
        {"type": "text", "text": "there"},
    ]
    assert first["participant"] == {"kind": "agent", "id": "bot", "display_name": "Bot"}
    assert first["sources"] == [{"document_id": "d", "document_name": "Doc", "chunk": "chunk", "score": 0.5}]
    assert (first["scope"], first["metadata"], first["trace_id"]) == ("dm", {"thread_id": "t"}, "trace")
    assert (first["sequence"], first["text"], first["is_summary"]) == (1, "Look:\nthere", False)
    assert "secret" not in str(first)
    assert second["parts"] == [
        {"type": "tool_result", "tool_use_id": "t1", "content": {"rows": [1, 2]}, "is_error": True, "name": "find"}
    ]
    assert first["position"] == str((await store.get_message("c", "m1")).position)


async def test_long_values_are_cut_and_can_be_fetched(web: Any, store: Any) -> None:
    text, value = "é" * 30_000, {"rows": ["r" * 1000] * 30}
    result = tool_result("t", value, name="n" * 5000)
    await store.append("c", tool(text, result, id="m", metadata={"big": "b" * 30_000}))
    (message,) = (await web.get(at("c", "messages"))).json()["messages"]
    written, returned = message["parts"]
    assert written == {"type": "text", "text": "é" * 20_000, "cut": 30_000}
    assert (len(returned["content"]), returned["cut"] > 30_000, len(returned["name"])) == (20_000, True, 1000)
    assert returned["content"].startswith('{"rows":["rrr')
    assert (message["metadata"], message["metadata_cut"] > 30_000) == ({"is_summary": False}, True)
    whole = (await web.get(at("c", "messages", "m"))).json()
    assert (whole["parts"][0]["text"], whole["parts"][1]["content"]) == (text, value)
    assert (await web.get(at("c", "messages", "none"))).status_code == 404
    for name, count in (("few", 10), ("many", 50)):
        sources = [Source(f"d{number}", f"Doc {number}", "c" * 2500, 0.5) for number in range(count)]
        await store.append(name, assistant("As it says there.", id="m", sources=sources))
    (message,) = (await web.get(at("few", "messages"))).json()["messages"]
    cut = {"chunk": "c" * 1200, "score": 0.5, "cut": 2500}
    assert message["sources"] == [{"document_id": f"d{n}", "document_name": f"Doc {n}", **cut} for n in range(10)]
    assert "sources_cut" not in message
    (message,) = (await web.get(at("many", "messages"))).json()["messages"]
    assert (message["sources_cut"], 10 < len(message["sources"]) < 20) == (50, True)
    whole = (await web.get(at("many", "messages", "m"))).json()
    assert [source["chunk"] for source in whole["sources"]] == ["c" * 2500] * 50


async def test_images_stay_on_the_server_until_they_are_asked_for(web: Any, store: Any) -> None:
    text, image = "x" * 40_000, {"type": "image", "data": b64encode(bytes(range(256)) * 240).decode()}
    await store.append("c", tool(text, tool_result("t", [image, {"type": "text", "text": "seen"}]), id="m"))
    page = await web.get(at("c", "messages"))
    (message,) = page.json()["messages"]
    written, returned = message["parts"]
    assert written == {"type": "text", "text": "x" * 20_000, "cut": 40_000}
    assert 81_900 <= returned["cut"] < 82_100
    assert len(returned["content"]) < 1_500
    assert "seen" in returned["content"]
    whole = (await web.get(at("c", "messages", "m"))).json()
    assert whole["parts"][1]["content"][0] == image


async def test_pages_of_messages_lead_through_a_long_conversation(web: Any, store: Any) -> None:
    for first in range(0, 1400, 700):
        await store.append_many("c", [user(f"m{n}", id=f"m{n}") for n in range(first, first + 700)])

    async def get(**query: str) -> Any:
        return (await web.get(at("c", "messages", **query))).json()

    page = await get(limit="1000")
    assert (page["cursor"], page["more"]) == (str((await store.snapshot("c", limit=1)).cursor), True)
    assert ids(page) == [f"m{n}" for n in range(400, 1400)]
    seen = page["messages"]
    while page["more"]:
        page = await get(limit="150", before=seen[0]["position"])
        assert page["cursor"] is None
        seen = page["messages"] + seen
    assert [one["id"] for one in seen] == [f"m{n}" for n in range(1400)]
    position = [one["position"] for one in seen]
    assert ids(await get(since=position[-4])) == ["m1397", "m1398", "m1399"]
    for query, found, more in (
        ({"since": position[4], "first": "1"}, ["m5", "m6"], True),
        ({"since": position[-3], "first": "1"}, ["m1398", "m1399"], False),
        ({"before": position[2]}, ["m0", "m1"], False),
    ):
        page = await get(limit="2", **query)
        assert (ids(page), page["more"]) == (found, more)


async def test_a_response_has_a_bounded_size(web: Any, store: Any) -> None:
    parts = ["x" * 20_000] * 40  # 1.6 MB, because each text is sent twice
    for number in range(12):
        await store.append("c", user(*parts, id=f"m{number}"))
    page = (await web.get(at("c", "messages", limit="1000"))).json()
    assert (page["more"], 3 < len(page["messages"]) < 12) == (True, True)
    seen = ids(page)
    while page["more"]:
        before = page["messages"][0]["position"]
        page = (await web.get(at("c", "messages", limit="1000", before=before))).json()
        seen = ids(page) + seen
    assert seen == [f"m{number}" for number in range(12)]


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_the_originals_of_a_summary(web: Any, store: Any, limit: int) -> None:
    await store.append("c", system("Be kind", id="s"))
    await store.append_many("c", [user(f"m{n}", id=f"m{n}") for n in range(6)])
    first = (await store.compact("c", through="m2", summary="first")).summary
    await store.append_many("c", [user(f"m{n}", id=f"m{n}") for n in range(6, 8)])
    second = (await store.compact("c", through="m6", summary="second")).summary

    async def all_of(*what: str, **query: str) -> list[str]:
        page: dict[str, Any] = {"more": True}
        seen: list[str] = []
        while page["more"]:
            page = (await web.get(at("c", "messages", *what, limit=str(limit), **query))).json()
            seen = ids(page) + seen
            query |= {"before": page["messages"][0]["position"]} if page["messages"] else {}
        return seen

    assert await all_of(second.id, "originals") == ["m0", "m1", "m2", first.id, "m3", "m4", "m5", "m6"]
    assert await all_of(first.id, "originals") == ["m0", "m1", "m2"]
    everything = ["s", "m0", "m1", "m2", first.id, "m3", "m4", "m5", "m6", second.id, "m7"]
    assert await all_of(include_archived="1") == everything
    for name in ("m7", "none"):
        assert (await web.get(at("c", "messages", name, "originals"))).status_code == 404


async def test_search_within_one_and_over_all(web: Any, store: Any) -> None:
    await store.append("c", user("😀 the lost suitcase", participant=Participant("user", "ann")))
    await store.append("d", assistant("a suitcase was found"))
    await store.append("e", assistant("the suitcase?", tool_use("t", "look_up", {})))

    async def search(**query: str) -> Any:
        return (await web.get("v1/search", params={"q": "suitcase", **query})).json()

    (hit,) = (await search(conversation="c"))["hits"]
    assert hit["highlights"][0]["spans"] == [[12, 20]], "JavaScript counts the smiley as two"
    for query, found in (
        ({}, {"c", "d", "e"}),
        ({"role": "assistant"}, {"d", "e"}),
        ({"tool": "look_up"}, {"e"}),
        ({"participant": "ann"}, {"c"}),
        ({"since": hit["message"]["timestamp"]}, {"d", "e"}),
        ({"since": "2200-01-01"}, set()),
    ):
        assert {one["conversation"] for one in (await search(**query))["hits"]} == found, query
    assert await search(since="2200-01-01", before="1999-01-01") == {"hits": [], "total": 0, "incomplete": None}
    assert await search(q="") == {"hits": [], "total": 0, "incomplete": None}


async def test_messages_of_others_neither_hide_hits_nor_show(make: Any, store: Any) -> None:
    await store.append("mine", user("a suitcase"))
    for number in range(3):
        await store.append_many(f"other {number}", [user("suitcase suitcase suitcase") for _ in range(50)])

    def authorize(request: Any, conversation_id: str | None, action: str) -> bool:
        return conversation_id in (None, "mine")

    async with client(make(authorize=authorize)) as web:
        found = (await web.get("v1/search", params={"q": "suitcase"})).json()
    assert ([hit["conversation"] for hit in found["hits"]], found["total"]) == (["mine"], 1)


@pytest.mark.proves("bounded-requests")
async def test_wrong_parameters(web: Any) -> None:
    messages = at("c", "messages")
    for path, why in (
        ("v1/conversations//messages", "empty"),
        ("v1/conversations/%ED%A0%80/messages", "UTF-8"),
        ("v1/conversations/%FF/messages", "UTF-8"),
        ("v1/conversations/=%2e/messages", "base64url"),
        ("v1/conversations/=_w/messages", "base64url"),
        ("v1/conversations/=/messages", "empty"),
        ("v1/search?q=x&since=9999-12-31T23:59:59.999999999Z", "outside the years"),
        (at("x" * 600, "messages"), "512 bytes"),
        (f"{messages}?conversation=d", "conversation"),
        (f"{messages}?limit=0", "limit"),
        (f"{messages}?limit=1001", "limit"),
        (f"{messages}?limit=1e3", "limit"),
        (at("c", "messages", limit="٣"), "limit"),
        (f"{messages}?limit=1&limit=2", "twice"),
        (f"{messages}?limit=%FF", "UTF-8"),
        (f"{messages}?before=yesterday", "position"),
        (f"{messages}?" + "&".join(f"f{n}=1" for n in range(40)), "at most 32"),
        (f"{messages}?first=maybe", "first"),
        (f"{messages}?limt=5", "limt"),
        ("v1/search?q=x&conversation=%ED%A0%80", "UTF-8"),
        ("v1/conversations?cursor=-1", "cursor"),
        ("v1/conversations?cursor=1000000", "cursor"),
        ("v1/search?q=x&since=soon", "soon"),
        ("v1/search?q=x&role=king", "king"),
        (at("c", "events", after="here"), "cursor"),
    ):
        refused = await web.get(path)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_input"), path
        assert why in refused.json()["detail"]


async def test_unknown_parameters_are_refused_everywhere(make: Any, store: Any) -> None:
    await store.append("c", user("1", id="m"))
    before = await store.snapshot("c")
    async with client(make(authorize=allow_all, read_only=False)) as web:
        for path, by in API.items():
            for method, endpoint in by.items():
                where = path.format(conversation="c", message="m", user="u", call="k", image="0")
                body = {} if endpoint.fields is None else {"json": dict.fromkeys(endpoint.fields, "x")}
                for name in ("unknown", "Limit", "conversation_id"):
                    refused = await web.request(method, where, params={name: "1"}, **body)
                    assert (refused.status_code, name in refused.json()["detail"]) == (400, True), path
                if body and method != "DELETE":
                    body["json"]["unknown"] = 1
                    refused = await web.request(method, where, **body)
                    assert (refused.status_code, "unknown" in refused.json()["detail"]) == (400, True), path
    assert await store.snapshot("c") == before


async def test_any_id_fits_into_a_path(web: Any, store: Any) -> None:
    for name in ("a/b", "..", "~", "~YWI", "=", "=YWI", "a b%2F+?#", "\n\x00", "旅行", ODD):
        await store.append(name, user("1", id=name))
        encoded = "=" + urlsafe_b64encode(name.encode()).decode().rstrip("=")
        for one in (encoded, *([] if name == ".." else [quote(name, safe="")])):
            assert ids((await web.get(f"v1/conversations/{one}/messages")).json()) == [name]
            assert (await web.get(f"v1/conversations/{one}/messages/{one}")).json()["id"] == name


async def test_a_state_that_the_client_has_is_not_sent_again(web: Any, store: Any) -> None:
    await store.append("c", user("1"))
    for path in (at("c"), at("c", "messages")):
        tag = (await web.get(path)).headers["etag"]
        same = await web.get(path, headers={"If-None-Match": f'"x", W/{tag}'})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
        await store.append("c", user("2"))
        assert (await web.get(path, headers={"If-None-Match": tag})).status_code == 200


async def test_a_reply_that_grows_is_sent_again(web: Any, store: Any) -> None:
    path, known = at("c", "messages"), dict[str, str]()
    async with store.stream("c", id="answer") as reply:
        for token, written in (("Because ", "Because "), ("of ", "Because of ")):
            await reply.write(token)

            async def is_stored(written: str = written) -> bool:
                found = await store.get_message("c", "answer")
                return found is not None and found.text == written

            await until(is_stored)
            page = await web.get(path, headers=known)
            assert page.status_code == 200
            assert [one["text"] for one in page.json()["messages"]] == [written]
            known = {"If-None-Match": page.headers.get("etag", "")}
    page = await web.get(path, headers=known)
    assert page.json()["messages"][0]["status"] == "complete"
    assert (await web.get(path, headers={"If-None-Match": page.headers["etag"]})).status_code == 304

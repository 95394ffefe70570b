"""The programs of the documentation: a history in a file, an agent in a room, the two scripts of the tutorial, and the
streams of providers."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import anthropic
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from redis_history import Conversation, Event, HistoryStore, user
from tests.docs.pages import DOCS, PAGES, ROOT, blocks
from tests.support.servers import Start
from tests.support.web import listening

sys.path.insert(0, str(DOCS / "examples"))
FileHistory = import_module("file_history").FileHistory
example = import_module("room_agent")


def test_saved_messages_are_loaded(tmp_path: Path) -> None:
    history = FileHistory(tmp_path / "history.json", max_length=3)
    history.load()
    assert len(history) == 0
    history.autosave()
    for number in range(5):
        history.add_text("user", str(number))
    again = FileHistory(history.path)
    again.load()
    assert again.entries == history.entries
    history.clear()
    again.load()
    assert again.entries == []
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]


def test_a_failed_save_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = FileHistory(tmp_path / "history.json")
    history.add_entry(user("kept"))
    history.save()
    history.add_text("user", "lost")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            history.save()
    history.load()
    assert [entry.text for entry in history.entries] == ["kept"]
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, own_server: Start) -> Iterator[HistoryStore]:
    url = "memory://" if request.param == "memory" else own_server().url
    with HistoryStore(url, namespace="rooms") as store:
        store.create_conversation(Conversation("c", metadata=example.CHANNEL))
        yield store


def say(agent: Any, number: int, who: str, text: str) -> list[Any] | None:
    event = {"id": str(number), "user": who, "text": text}
    answer: list[Any] | None = agent.hears(example.received(example.CHANNEL, event), "c")
    return answer


def test_it_answers_to_its_names_in_the_channel_and_records_all(store: HistoryStore) -> None:
    agent = example.RoomAgent(store)
    assert say(agent, 1, "U1", "The hotel is the Harbour Inn.") is None
    assert say(agent, 2, "U2", "U9 and the Travel Bot are not mentioned here.") is None
    assert say(agent, 3, "U2", "<@U1> what was the hotel?") is None
    answer = say(agent, 4, "U2", "<@U9> what was the hotel?")
    assert "Harbour Inn" in answer[-1].text
    live = store.get("c")
    assert [message.id for message in live[:4]] == ["C7-1", "C7-2", "C7-3", "C7-4"]
    assert [message.role for message in live[4:]] == ["assistant", "tool", "assistant"]
    assert {message.participant for message in live[4:]} == {example.GUIDE}
    assert live[4].tool_uses[0].name == "conversation_search"
    say(agent, 1, "U1", "The hotel is the Harbour Inn.")
    assert len(store.get("c")) == len(live)


def test_its_names_are_those_of_the_channel(store: HistoryStore) -> None:
    other = {**example.CHANNEL, "members": [{"id": "U7", "display_name": "Helper", "agent_id": "guide"}]}
    store.update_conversation("c", metadata=other)
    agent = example.RoomAgent(store)
    assert say(agent, 1, "U1", "<@U9> what was the hotel?") is None
    assert say(agent, 2, "U1", "<@U7> what was the hotel?") is not None


SCRIPTS = {block.file: block for page in PAGES for block in blocks(page) if block.file is not None}


@pytest.mark.full
def test_watch_and_say(private_home: Path) -> None:
    assert set(SCRIPTS) == {"watch.py", "say.py"}, "a script in the documentation without a test"
    for file, block in SCRIPTS.items():
        (private_home / str(file)).write_text(block.content)
    others = [block for block in blocks(DOCS / "tutorial.md") if block.language in ("sh", "text")]
    [commands, shown] = others[1:3]
    assert 'python say.py "Kettle on?" "Two cups, please."' in commands.content

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    say = [sys.executable, "say.py", "Kettle on?", "Two cups, please."]
    watch = subprocess.Popen(
        [sys.executable, "watch.py"], cwd=private_home, env=environment, stdout=subprocess.PIPE, text=True
    )
    with watch:
        try:
            seen = watch.stdout.readline()
            subprocess.run(say, cwd=private_home, env=environment, check=True, timeout=60)
            seen += watch.stdout.readline() + watch.stdout.readline()
        finally:
            watch.terminate()
    assert seen == shown.content


def test_the_follower_has_what_is_stored(store: HistoryStore) -> None:
    store.append_many("c", [user(str(number), id=str(number)) for number in range(5)])
    live = import_module("follower").states(store, "c")
    assert list(next(live)) == ["0", "1", "2", "3", "4"]
    for change in (
        lambda: store.append("c", user("5", id="5")),
        lambda: store.update_message("c", user("six", id="5")),
        lambda: store.delete_messages("c", ["5"]),
        lambda: store.pin("c", "1"),
        lambda: store.compact("c", through="2", summary="They counted."),
        lambda: store.clear("c"),
    ):
        change()
        known = {message.id: message for message in store.get("c")}
        assert next(live) == known
    live.close()


def test_the_follower_knows_every_event() -> None:
    """Except changes of the record."""
    follower = (DOCS / "examples" / "follower.py").read_text(encoding="utf-8")
    wanted = {kind.__name__ for kind in get_args(Event)} - {"ConversationUpdated"}
    assert {name for name in wanted if len(re.findall(rf"\b{name}\b", follower)) < 2} == set(), "imported, and used"


WORDS = ("It ", "is ", "😀.")
OPENAI = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in WORDS]
ANTHROPIC = [
    {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [],
     "model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *[{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS],
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]  # fmt: skip


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_the_stream_of_a_provider(provider: str) -> None:
    page: dict[str, Any] = {}
    [block] = [one for one in blocks(DOCS / "how-to" / "live-replies.md") if "def openai_words" in one.content]
    exec(block.content, page)
    asked: list[Any] = []

    async def model(request: Request) -> StreamingResponse:
        asked.append(await request.json())

        async def frames() -> AsyncIterator[str]:
            if provider == "anthropic":
                for event in ANTHROPIC:
                    yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            else:
                common = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
                for event in OPENAI:
                    yield f"data: {json.dumps({**common, **event})}\n\n"
                yield "data: [DONE]\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    async with listening(Starlette(routes=[Route("/{path:path}", model, methods=["POST"])])) as port:
        base = f"http://127.0.0.1:{port}"
        client: Any
        if provider == "openai":
            client = openai.AsyncOpenAI(api_key="x", base_url=f"{base}/v1")
        else:
            client = anthropic.AsyncAnthropic(api_key="x", base_url=base)
        async with client:
            words = page[f"{provider}_words"]([user("What is it?")], client, "m")
            assert [word async for word in words] == [*WORDS]
    assert "What is it?" in str(asked[0]["messages"])
    assert asked[0]["stream"] is True

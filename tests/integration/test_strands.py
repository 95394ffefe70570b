"""Strands: agents, graphs and swarms over several days, each with new objects, next to the framework's own files."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager, SummarizingConversationManager
from strands.hooks import BeforeToolCallEvent, HookProvider
from strands.models.model import Model as StrandsModel
from strands.multiagent import GraphBuilder, Swarm
from strands.multiagent.base import Status
from strands.session import FileSessionManager, RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from redis_history import Conversation, HistoryStore, assistant, text, tool_use, user
from redis_history.errors import InvalidConversationIdError, InvalidInputError
from redis_history.integrations import _extras
from redis_history.integrations.strands import StrandsSessionRepository, search_tool

PNG = b"\x89PNG\r\n\x00\xff"


class Model(StrandsModel):
    """Calls the tools that a question names, and answers with their results. Refuses "secret"."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def update_config(self, **_: Any) -> None:
        raise NotImplementedError

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **_: Any) -> Any:  # type: ignore[override]
        self.sent.append(plain([{"role": one["role"], "content": one["content"]} for one in messages]))
        last = messages[-1]["content"]
        said = " ".join(block.get("text", "") for block in last)
        calls = re.findall(r"use (\w+)", said)
        yield {"messageStart": {"role": "assistant"}}
        if "secret" in said:
            yield {"redactContent": {"redactUserContentMessage": "[hidden]"}}
        for number, name in enumerate(calls):
            use = {"name": name, "toolUseId": f"{len(messages)}-{number}"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}}
            yield {"contentBlockStop": {}}
        if not calls:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": f"answer to {len(messages)} messages"}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}


def plain(value: Any) -> Any:
    """In a form without random ids."""
    return json.loads(re.sub(r"v1:[^\"]*", "v1", json.dumps(value, default=repr)))


@tool
def weather() -> str:
    """Tell the weather."""
    return "rain"


@tool
def photo() -> Any:
    """Take a photo."""
    return {
        "status": "success",
        "content": [{"image": {"format": "png", "source": {"bytes": PNG}}}, {"json": {"a": [1]}}],
    }


@tool
def fails() -> str:
    """Fail."""
    raise RuntimeError("broken")


@tool(context=True)
def asks(tool_context: ToolContext) -> str:
    """Ask a person."""
    return str(tool_context.interrupt("question", reason="which?"))


class Approval(HookProvider):
    def register_hooks(self, registry: Any, **_: Any) -> None:
        registry.add_callback(BeforeToolCallEvent, self.approve)

    def approve(self, event: Any) -> None:
        if event.tool_use["name"] == "weather" and event.interrupt("approve", reason="may I?") != "yes":
            event.cancel_tool = "refused"


class Days:
    """A session with new objects each day: in files, or in a store."""

    def __init__(self, place: Path | HistoryStore) -> None:
        self.place, self.model = place, Model()

    def manager(self, session_id: str = "s") -> Any:
        if isinstance(self.place, HistoryStore):
            return RepositorySessionManager(session_id, StrandsSessionRepository(self.place))
        return FileSessionManager(session_id, storage_dir=str(self.place))

    def agent(self, **options: Any) -> Agent:
        return Agent(
            model=self.model, tools=[weather, photo, fails, asks], session_manager=self.manager(),
            callback_handler=None, **options,
        )  # fmt: skip

    def member(self, name: str, *tools: Any) -> Agent:
        return Agent(model=self.model, tools=[*tools], name=name, callback_handler=None)


def answers(result: Any, response: str) -> Any:
    return [{"interruptResponse": {"interruptId": one.id, "response": response}} for one in result.interrupts]


def chat(days: Days) -> None:
    for question in ("hi", "use weather", "use photo and use fails", "bye"):
        days.agent()(question)
    days.agent()(
        [{"text": "look"}, {"image": {"format": "png", "source": {"bytes": PNG}}}, {"cachePoint": {"type": "default"}}]
    )
    days.agent()("hi again")


def state(days: Days) -> None:
    for number in range(3):
        agent = days.agent(state={"first": True} if number == 0 else None)
        assert agent.state.get("count") == (number or None)
        agent.state.set("count", number + 1)
        agent("hi")


def interrupts(days: Days) -> None:
    for answer in ("yes", "no"):
        result = days.agent(hooks=[Approval()])("use photo and use weather")
        assert result.stop_reason == "interrupt"
        result = days.agent(hooks=[Approval()])(answers(result, answer))
        assert result.stop_reason == "end_turn"
    result = days.agent()("use asks")
    days.agent()(answers(result, "blue"))


def windows(days: Days) -> None:
    for number in range(8):
        days.agent(conversation_manager=SlidingWindowConversationManager(window_size=5))(f"question {number}")


def summaries(days: Days) -> None:
    for number in range(5):
        manager = SummarizingConversationManager(
            summary_ratio=0.5, preserve_recent_messages=2, summarization_agent=days.member("summarizer")
        )
        agent = days.agent(conversation_manager=manager)
        agent(f"question {number}")
        if number == 2:
            manager.reduce_context(agent)


def redaction(days: Days) -> None:
    days.agent()("hi")
    days.agent()("my secret is 42")
    days.agent()("bye")


def two_agents(days: Days) -> None:
    for number in range(2):
        for agent_id in ("one", "two"):
            days.agent(agent_id=agent_id)(f"{agent_id} {number}")


def stopped_before_a_result(days: Days) -> None:
    """The process died between a call and its result."""
    agent = days.agent()
    manager: Any = agent._session_manager
    call: Any = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "x", "name": "weather", "input": {}}}]}
    for message in ({"role": "user", "content": [{"text": "weather?"}]}, call):
        manager.append_message(message, agent)
    days.agent()("still there?")
    days.agent()("bye")


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize(
    "scenario",
    [chat, state, interrupts, windows, summaries, redaction, two_agents, stopped_before_a_result],
)
def test_the_model_is_sent_the_same_as_with_the_own_files(
    store: HistoryStore, tmp_path: Path, scenario: Callable[[Days], None]
) -> None:
    own, ours = Days(tmp_path), Days(store)
    for days in (own, ours):
        scenario(days)
    assert ours.model.sent == own.model.sent
    agents = [(one["agent_id"], one) for one in map(json.loads, map(Path.read_text, tmp_path.glob("**/agent.json")))]
    repository = StrandsSessionRepository(store)
    for agent_id, expected in agents:
        found = repository.read_agent("s", agent_id)
        assert found is not None
        times = {"created_at": "", "updated_at": ""}
        assert plain({**found.to_dict(), **times}) == plain({**expected, **times})
        files = FileSessionManager("s", storage_dir=str(tmp_path))
        assert contents(repository.list_messages("s", agent_id)) == contents(files.list_messages("s", agent_id))


def contents(messages: list[SessionMessage]) -> Any:
    return plain([(one.message_id, one.to_message()["role"], one.to_message()["content"]) for one in messages])


def graph(days: Days) -> Any:
    builder = GraphBuilder()
    builder.set_max_node_executions(5)
    builder.add_node(days.member("asker", asks), "asker")
    builder.add_node(days.member("writer"), "writer")
    builder.add_edge("asker", "writer")
    builder.set_session_manager(days.manager())
    return builder.build()


def swarm(days: Days) -> Any:
    return Swarm([days.member("asker", asks), days.member("writer")], session_manager=days.manager())


@pytest.mark.parametrize("build", [graph, swarm])
def test_a_graph_and_a_swarm_go_on_the_next_day(
    store: HistoryStore, tmp_path: Path, build: Callable[[Days], Any]
) -> None:
    own, ours = Days(tmp_path), Days(store)
    for days in (own, ours):
        result = build(days)("use asks")
        assert result.status == Status.INTERRUPTED
        result = build(days)(answers(result, "blue"))
        assert result.status == Status.COMPLETED
        assert build(days)("once more").status in (Status.COMPLETED, Status.INTERRUPTED)
    assert ours.model.sent == own.model.sent
    assert "blue" in str(ours.model.sent)


def test_messages_are_those_of_other_frameworks(store: HistoryStore) -> None:
    days = Days(store)
    days.agent(name="Bot")("use photo")
    days.agent()("hi")
    found = store.get("s")
    assert [one.role for one in found] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [one.participant and one.participant.id for one in found][1] == "default"
    [result] = found[2].tool_results
    assert result.content[0]["source"]["media_type"] == "image/png"
    assert store.get_conversation("s").agent_name == "default"  # type: ignore[union-attr]
    assert [hit.message.text for hit in store.search("s", "answer")]


def test_an_agent_continues_a_conversation_of_others(store: HistoryStore) -> None:
    """Also its own in later days, into which others have written."""
    store.append_many(
        "s", [user("question of a worker"), assistant([text("I look."), tool_use("c", "find", {"q": 1})])]
    )
    days = Days(store)
    for number in range(2):
        messages = StrandsSessionRepository(store).messages("s")
        days.agent(messages=messages)(f"question {number}")
        store.append("s", user(f"operator {number}"))
    days.agent()("last")
    texts = [one.text for one in store.get("s")]
    assert len(texts) == len(set(texts)) + texts.count("I look.") - 1
    said = [block.get("text") for message in days.model.sent[-1] for block in message["content"]]
    assert [one for one in said if one and not one.startswith("answer")] == [
        "question of a worker", "I look.", "question 0", "operator 0", "question 1", "operator 1", "last",
    ]  # fmt: skip


def test_a_compaction_leaves_the_session_as_it_is(store: HistoryStore) -> None:
    days = Days(store)
    for question in ("a", "use weather", "b"):
        days.agent()(question)
    store.compact("s", through=store.get("s")[-3], summary="in short")
    days.agent()("c")
    assert len(days.model.sent[-1]) == 9
    assert store.get("s")[0].is_summary


def test_what_is_redacted_is_nowhere(store: HistoryStore) -> None:
    days = Days(store)
    days.agent()("my secret is 42")
    assert "secret is 42" not in str(store.get("s"))
    [asked, _] = StrandsSessionRepository(store).list_messages("s", "default")
    assert asked.redact_message == asked.message
    assert asked.message["content"] == [{"text": "[hidden]"}]


def saved(index: int, said: str, **more: Any) -> SessionMessage:
    message: Any = {"role": "user", "content": [{"text": said}], **more}
    return SessionMessage.from_message(message, index)


def test_concurrent_processes_lose_no_message(store: HistoryStore) -> None:
    """In files, the second message with an index replaces the first."""
    repositories = [StrandsSessionRepository(store) for _ in range(4)]
    repositories[0].create_session(Session("s", SessionType.AGENT))
    repositories[0].create_agent("s", SessionAgent("default", {}, {}))

    def write(at: int) -> None:
        for index in range(10):
            repositories[at].create_message("s", "default", saved(index, f"{at}-{index}", tracking_id=f"{at}-{index}"))

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(4)))
    assert len(repositories[0].list_messages("s", "default")) == 40


def test_a_repeated_call_stores_a_message_once(store: HistoryStore) -> None:
    repository = StrandsSessionRepository(store)
    first = saved(0, "a", tracking_id="t")
    for _ in range(2):
        repository.create_message("s", "default", first)
    repository.create_message("s", "default", saved(1, "a", tracking_id="t"))
    repository.create_message("s", "default", saved(2, "other", tracking_id="t"))
    assert [one.text for one in store.get("s")] == ["a", "other"]
    repository.update_message("s", "default", saved(0, "b", tracking_id="t"))
    assert [one.text for one in store.get("s")] == ["b", "other"]


def test_what_does_not_exist(store: HistoryStore) -> None:
    repository = StrandsSessionRepository(store)
    session = Session("s", SessionType.AGENT)
    agent = SessionAgent("a", {"x": 1}, {})
    assert repository.read_session("s") is None
    assert repository.read_agent("s", "a") is None
    assert repository.read_message("s", "a", 0) is None
    assert repository.read_multi_agent("s", "m") is None
    for call in (
        lambda: repository.update_agent("s", agent),
        lambda: repository.update_message("s", "a", saved(0, "x")),
        lambda: repository.list_messages("s", "a"),
        lambda: repository.update_multi_agent("s", Swarm([Agent(model=Model())])),
        lambda: repository.delete_session("s"),
    ):
        with pytest.raises(SessionException):
            call()
    repository.create_session(session)
    with pytest.raises(SessionException):
        repository.create_session(session.__class__("s", SessionType.AGENT, created_at="other"))
    repository.create_agent("s", agent)
    assert repository.list_messages("s", "a") == []
    with pytest.raises(InvalidInputError, match="JSON"):
        repository.update_agent("s", SessionAgent("a", {"x": object()}, {}))
    with pytest.raises(InvalidConversationIdError):
        repository.read_session("")


def test_names_of_sessions_and_agents_never_meet(store: HistoryStore) -> None:
    repository = StrandsSessionRepository(store, user_id=7)
    names = [
        ("a/b", "default"),
        ("a", "b"),
        ("a", "b/state"),
        ("strands", "a"),
        ("strands/a/state", "default"),
        ("a", "state"),
    ]
    for session_id, agent_id in names:
        if repository.read_session(session_id) is None:
            repository.create_session(Session(session_id, SessionType.AGENT))
        repository.create_agent(session_id, SessionAgent(agent_id, {"me": [session_id, agent_id]}, {}))
        repository.create_message(session_id, agent_id, saved(0, f"{session_id} {agent_id}"))
    for session_id, agent_id in names:
        [message] = repository.list_messages(session_id, agent_id)
        assert message.message["content"] == [{"text": f"{session_id} {agent_id}"}]
        assert repository.read_agent(session_id, agent_id).state == {"me": [session_id, agent_id]}  # type: ignore[union-attr]
    repository.delete_session("a")
    assert repository.read_session("a") is None
    assert repository.list_messages("a/b", "default")
    assert store.erase_user(7) > 0
    assert store.list_conversations() == []


@pytest.mark.parametrize("session_id", ["user:42", "team/chat 1", "ann@example.com", "100%", "世界"])
def test_a_session_is_the_conversation_of_its_id(store: HistoryStore, session_id: str) -> None:
    store.ask(session_id, user("Hi"))
    repository = StrandsSessionRepository(store)
    assert [one["content"] for one in repository.messages(session_id)] == [[{"text": "Hi"}]]
    repository.create_message(session_id, "default", saved(1, "Hello"))
    assert [one.text for one in store.get(session_id)] == ["Hi", "Hello"]


@pytest.mark.usefixtures("small_caps")
def test_a_large_result_is_shortened(store: HistoryStore) -> None:
    losses: list[Any] = []
    repository = StrandsSessionRepository(store, on_loss=losses.append)
    content: Any = [{"toolResult": {"toolUseId": "c", "status": "success", "content": [{"text": "x" * 4_500_000}]}}]
    repository.create_message("s", "default", SessionMessage.from_message({"role": "user", "content": content}, 0))
    [found] = repository.list_messages("s", "default")
    result: Any = found.message["content"][0]
    assert result["toolResult"]["toolUseId"] == "c"
    assert "too large to store" in result["toolResult"]["content"][0]["text"]
    assert len(losses) == 1


def test_the_state_lives_as_long_as_the_messages(server: Any, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace, ttl=3600) as store:
        days = Days(store)
        days.agent()("hi")
        key = Conversation(conversation_id=_extras.joined_id("strands", "s", "state")).conversation_id
        before = store.get_conversation(key)
        days.agent()("hi again")  # a new process: it does not know when the state was written
        after = store.get_conversation(key)
        assert before is not None
        assert after is not None
        assert after.revision > before.revision


def test_an_agent_searches_its_conversation(store: HistoryStore) -> None:
    store.append_many("s", [user("My suitcase is green."), assistant("I see."), user("Which color?")])
    found = search_tool(store, "s")
    assert found.tool_spec["inputSchema"]["json"]["properties"].keys() == {"query", "limit"}
    agent = Agent(model=Model(), tools=[found], callback_handler=None)
    result = agent.tool.conversation_search(query="suitcase")
    assert "green" in result["content"][0]["text"]

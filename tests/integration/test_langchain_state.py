"""An agent that removes messages and goes back to checkpoints, compared with the same agent with LangGraph's
checkpointer alone. The model must be sent the same, and the conversation must have what the state has."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware, after_model, before_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, RemoveMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from redis_history import AsyncHistoryStore, HistoryStore, Message, user
from redis_history.integrations.langchain import live_replies
from redis_history.integrations.langchain_agent import ConversationMiddleware

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Model(BaseChatModel):
    """Answers question "q1" with "t1", and "q1" asked again with "t1'". Calls the tool `look` for "look"."""

    sent: list[list[str]] = []  # noqa: RUF012 -- a pydantic field

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        texts = [f"{message.type}: {message.text}" for message in messages]
        answer = AIMessage(str(messages[-1].text).replace("q", "t") + "'" * sum(texts == one for one in self.sent))
        self.sent.append(texts)
        if messages[-1].text == "look":
            calls: Any = [{"name": "look", "args": {}, "id": f"{len(self.sent)}-{number}"} for number in (1, 2)]
            answer = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        answer: Any = self._generate(messages).generations[0].message
        yield ChatGenerationChunk(message=AIMessageChunk(answer.content, tool_calls=answer.tool_calls))


def look() -> str:
    """Look."""
    return "q seen"


class Asked:
    """An agent with a checkpointer; and with the conversation, if there is a store."""

    def __init__(self, store: HistoryStore | None, *others: Any, first: bool = True, **options: Any) -> None:
        self.store, self.model = store, Model(sent=[])
        own: Any = [] if store is None else [ConversationMiddleware(store, **options)]
        middleware = [*own, *others] if first else [*others, *own]
        self.agent: Any = create_agent(self.model, [look], middleware=middleware, checkpointer=InMemorySaver())

    def ask(self, *texts: str, at: Any = CONFIG) -> None:
        for text in texts:
            self.agent.invoke({"messages": [HumanMessage(text)]}, at)

    def update(self, *messages: BaseMessage, at: Any = CONFIG) -> Any:
        return self.agent.update_state(at, {"messages": list(messages)})

    @property
    def messages(self) -> list[BaseMessage]:
        found: list[BaseMessage] = self.agent.get_state(CONFIG).values.get("messages", [])
        return found

    def remove(self, *indexes: int) -> None:
        self.update(*[RemoveMessage(id=str(self.messages[index].id)) for index in indexes])

    def checkpoint(self, *texts: str, next_: str = "") -> Any:
        """The newest checkpoint with these messages, at the end of a call or before the node `next_`."""
        for state in self.agent.get_state_history(CONFIG):
            if [one.text for one in state.values.get("messages", [])] == [*texts]:
                is_end = not state.next
                if is_end if not next_ else any(next_ in node for node in state.next):
                    return state.config
        raise AssertionError(texts)

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.messages]


def another_question(run: Asked) -> None:
    run.ask("q0", "q1", "q2")
    run.ask("q3", at=run.checkpoint("q0", "t0"))
    run.ask("q4")


def another_question_twice(run: Asked) -> None:
    run.ask("q0", "q1")
    for text in ("q2", "q3"):
        run.ask(text, at=run.checkpoint("q0", "t0"))
    run.ask("q4")


def back_to_the_other_branch(run: Asked) -> None:
    run.ask("q0", "q1", "q2")
    run.ask("q3", at=run.checkpoint("q0", "t0"))
    run.ask("q4", at=run.checkpoint("q0", "t0", "q1", "t1", "q2", "t2"))
    run.ask("q5", at=run.checkpoint("q0", "t0", "q3", "t3"))
    run.ask("q6")


def another_first_question(run: Asked) -> None:
    run.ask("q0", "q1")
    run.ask("q2", at=run.checkpoint(next_="__start__"))
    run.ask("q3")


def an_answer_again(run: Asked) -> None:
    run.ask("q0", "q1")
    run.agent.invoke(None, run.checkpoint("q0", "t0", "q1", next_="model"))
    run.ask("q2")


def an_edited_question(run: Asked) -> None:
    run.ask("q0", "q1", "q2")
    question = next(one for one in run.messages if one.text == "q1")
    config = run.checkpoint("q0", "t0", "q1", next_="model")
    run.agent.invoke(None, run.update(HumanMessage("q5", id=question.id), at=config))
    run.ask("q6")


def forgotten(run: Asked) -> None:
    run.ask("q0", "q1")
    run.remove(0, 1, 2, 3)
    run.ask("q2", "q3")


def forgotten_and_back(run: Asked) -> None:
    run.ask("q0", "q1")
    run.remove(0, 1)
    run.ask("q2")
    run.ask("q3", at=run.checkpoint("q0", "t0", "q1", "t1"))
    run.ask("q4")


def edited(run: Asked) -> None:
    run.ask("q0", "q1")
    run.update(HumanMessage("other", id=run.messages[0].id))
    run.ask("q2")


def added(run: Asked) -> None:
    run.ask("q0")
    run.update(HumanMessage("q8"), AIMessage("t8"))
    run.ask("q1")


def put_before(run: Asked) -> None:
    run.ask("q0")
    run.update(RemoveMessage(id=REMOVE_ALL_MESSAGES), SystemMessage("Be brief."), *run.messages)
    run.ask("q1", "q2")


def all_replaced(run: Asked) -> None:
    run.ask("q0", "q1")
    run.update(RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("q8"), AIMessage("t8"))
    run.ask("q2", "q3")


def a_result_removed(run: Asked) -> None:
    run.ask("look", "q1")
    run.remove(1, 2, 3)
    run.ask("q2")


def steps_again(run: Asked) -> None:
    run.ask("q0", "look")
    results = run.checkpoint("q0", "t0", "look", "", "q seen", "q seen", next_="model")
    run.agent.invoke(None, results)
    run.ask("q2")


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize(
    "scenario",
    [
        another_question,
        another_question_twice,
        back_to_the_other_branch,
        another_first_question,
        an_answer_again,
        an_edited_question,
        forgotten,
        forgotten_and_back,
        edited,
        added,
        put_before,
        all_replaced,
        a_result_removed,
        steps_again,
    ],
)
def test_the_state_of_the_checkpointer_reaches_the_model_and_the_conversation(
    store: HistoryStore, scenario: Callable[[Asked], None]
) -> None:
    own, ours = Asked(None), Asked(store)
    for run in (own, ours):
        scenario(run)
    assert ours.model.sent == own.model.sent
    assert ours.texts == own.texts
    assert [message.text for message in store.get("t")] == own.texts
    # A state without messages may also be that of a checkpointer that has lost them.
    forks = [
        [one.text for one in store.get(fork.conversation_id)] for fork in store.list_conversations(forked_from="t")
    ]
    assert forks == ([["q0", "t0", "q1", "t1"]] if scenario is another_first_question else [])


@before_model
def trim(state: Any, runtime: Any) -> dict[str, Any] | None:
    """The recipe of LangChain's documentation."""
    messages = state["messages"]
    if len(messages) <= 3:
        return None
    recent = messages[-3:] if len(messages) % 2 == 0 else messages[-4:]
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), messages[0], *recent]}


@after_model
def drop_old(state: Any, runtime: Any) -> dict[str, Any] | None:
    messages = state["messages"]
    return {"messages": [RemoveMessage(id=one.id) for one in messages[:2]]} if len(messages) > 4 else None


@before_model
def remind(state: Any, runtime: Any) -> dict[str, Any]:
    """Keeps one reminder before all other messages."""
    others = [one for one in state["messages"] if not one.text.startswith("remember")]
    texts = HumanMessage(f"remember {len(others)}")
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), texts, *others]}


class Summarizer(Model):
    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        self.sent.append([str(messages[-1].text)])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"SUM{len(self.sent)}"))])


def summaries(keep: int, trigger: int = 6) -> Any:
    return SummarizationMiddleware(Summarizer(sent=[]), trigger=("messages", trigger), keep=("messages", keep))


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(
    "other",
    [lambda: trim, lambda: drop_old, lambda: remind, lambda: summaries(1), lambda: summaries(4)],
    ids=["trim", "drop_old", "remind", "summaries 1", "summaries 4"],
)
@pytest.mark.full
async def test_other_middleware_changes_the_state_as_without_a_store(
    store: HistoryStore, async_store: AsyncHistoryStore, other: Callable[[], Any], first: bool, face: str
) -> None:
    own, ours = Asked(None, other()), Asked(store, other(), first=first, async_store=async_store)
    for run in (own, ours):
        for text in ("q0", "q1", "look", "q2", "look", "q3", "q4", "q5"):
            given = {"messages": [HumanMessage(text)]}
            if face == "async":
                await run.agent.ainvoke(given, CONFIG)
            else:
                run.agent.invoke(given, CONFIG)
    assert ours.model.sent == own.model.sent
    ours.ask("q6")
    assert [message.text for message in store.get("t")] == ours.texts


def test_a_summary_is_that_of_a_compaction(store: HistoryStore) -> None:
    """The summarized messages can be read, searched and put back. The next summary replaces it."""
    run = Asked(store, summaries(2))
    run.ask("q0", "q1", "q2", "q3")
    [summary, *rest] = store.get("t")
    assert summary.is_summary
    assert "SUM1" in summary.text
    assert [message.text for message in rest] == ["t2", "q3", "t3"]
    run.ask("q4", "q5", "q6")
    assert [message.is_summary for message in store.get("t")].count(True) == 1
    everything = [message.text for message in store.get("t", include_archived=True) if not message.is_summary]
    assert everything == [f"{kind}{number}" for number in range(7) for kind in "qt"]


def test_a_summary_without_a_checkpointer_is_read_in_the_next_turn(store: HistoryStore) -> None:
    """So the summarizer is sent what is new, not the whole conversation again."""
    model, summarizer = Model(sent=[]), Summarizer(sent=[])
    for number in range(12):
        other = SummarizationMiddleware(summarizer, trigger=("messages", 6), keep=("messages", 2))
        agent: Any = create_agent(model, middleware=[ConversationMiddleware(store), other])
        agent.invoke({"messages": [HumanMessage(f"q{number}")]}, CONFIG)
    assert 3 <= len(summarizer.sent) <= 6
    assert all("q0" not in text for [text] in summarizer.sent[1:])
    assert max(map(len, model.sent)) <= 6


def test_going_back_to_before_a_summary_puts_the_messages_back(store: HistoryStore) -> None:
    own, ours = Asked(None, summaries(2)), Asked(store, summaries(2))
    for run in (own, ours):
        run.ask("q0", "q1", "q2", "q3")
        run.ask("q8", at=run.checkpoint("q0", "t0"))
        run.ask("q9")
    assert ours.model.sent == own.model.sent
    assert [message.text for message in store.get("t")] == own.texts


@pytest.mark.parametrize("through", [1, 3, 5], ids=["before", "the next", "all"])
def test_going_back_to_before_a_compaction_puts_the_messages_back(store: HistoryStore, through: int) -> None:
    own, ours = Asked(None), Asked(store)
    for run in (own, ours):
        run.ask("q0", "q1", "q2")
    store.compact("t", through=store.get("t")[through], summary="of a compressor")
    for run in (own, ours):
        run.ask("q8", at=run.checkpoint("q0", "t0"))
        run.ask("q9")
    assert ours.model.sent == own.model.sent
    assert ours.texts == [message.text for message in store.get("t")] == ["q0", "t0", "q8", "t8", "q9", "t9"]


def test_a_branch_that_the_caller_did_not_name_is_kept_in_a_fork(store: HistoryStore) -> None:
    """As after a crash between the write to the store and that of the checkpoint."""
    own, ours = Asked(None), Asked(store)
    for run in (own, ours):
        run.ask("q0", "q1")
        run.update(at=run.checkpoint("q0", "t0"))
        run.ask("q2")
    assert ours.model.sent == own.model.sent
    assert [message.text for message in store.get("t")] == ["q0", "t0", "q2", "t2"]
    [fork] = store.list_conversations(forked_from="t")
    assert [message.text for message in store.get(fork.conversation_id)] == ["q0", "t0", "q1", "t1"]


def test_messages_of_other_writers_stay(store: HistoryStore) -> None:
    """Messages of other agents, of processes with a checkpointer in memory, and of people stay, whatever is removed."""
    one, other = Asked(store), Asked(store)
    one.ask("q0")
    other.ask("q1")
    one.ask("q2")
    store.append("t", user("operator"))
    other.ask("q3")
    assert one.model.sent[-1] == ["human: q0", "ai: t0", "human: q1", "ai: t1", "human: q2"]
    assert other.texts == ["q0", "t0", "q1", "t1", "q2", "t2", "operator", "q3", "t3"]
    one.ask("q4", at=one.checkpoint("q0", "t0"))
    assert [message.text for message in store.get("t")] == ["q0", "t0", "q1", "t1", "operator", "q3", "t3", "q4", "t4"]
    assert one.texts == [message.text for message in store.get("t")]
    one.remove(0, 2)
    one.ask("q5")
    assert one.texts == ["t0", "t1", "operator", "q3", "t3", "q4", "t4", "q5", "t5"]


@pytest.mark.parametrize("change", ["deleted", "edited", "compacted"])
def test_what_was_changed_in_the_conversation_stays_so(store: HistoryStore, change: str) -> None:
    """Also if the state removes or changes other messages at the same time."""
    run = Asked(store)
    run.ask("q0", "q1", "q2")
    [_, second, third, *_] = store.get("t")
    if change == "deleted":
        store.delete_messages("t", [third.id])
    elif change == "edited":
        store.update_message("t", Message(role="user", parts="elsewhere", id=third.id))  # type: ignore[arg-type]
    else:
        store.compact("t", through=third, summary="SUMMARY")
    run.update(HumanMessage("here", id=third.id), RemoveMessage(id=second.id))
    run.ask("q3")
    expected = {
        "deleted": ["q0", "t1", "q2", "t2"],
        "edited": ["q0", "elsewhere", "t1", "q2", "t2"],
        "compacted": ["SUMMARY", "t1", "q2", "t2"],
    }
    assert run.texts == [message.text for message in store.get("t")] == [*expected[change], "q3", "t3"]


def test_the_state_loads_what_fits_the_limit_after_a_removal(store: HistoryStore) -> None:
    run = Asked(store, limit=3)
    run.ask("q0", "q1", "q2", "q3")
    assert run.texts == ["t1", "q2", "t2", "q3", "t3"]
    run.remove(2, 3, 4)
    run.ask("q4")
    assert run.texts == ["q1", "t1", "q2", "q4", "t4"]
    assert [message.text for message in store.get("t")] == ["q0", "t0", "q1", "t1", "q2", "q4", "t4"]
    run.ask("q5", at=run.checkpoint("q0", "t0"))
    assert [message.text for message in store.get("t")] == ["q0", "t0", "q5", "t5"]


def test_pinned_messages_stay_when_a_summary_replaces_the_others(store: HistoryStore) -> None:
    run = Asked(store, summaries(2, trigger=7))
    run.ask("q0")
    store.pin("t", store.get("t")[0].id)
    run.ask("q1", "q2", "q3", "q4")
    assert store.get("t")[0].text == "q0"
    [first, summary, *_] = run.model.sent[-1]
    assert first == "human: q0"
    assert "SUM1" in summary


def test_an_agent_that_continues_a_fork_removes_nothing_there(store: HistoryStore) -> None:
    run = Asked(store)
    run.ask("q0", "q1")
    store.fork("t", "copy")
    other: Any = {"configurable": {"thread_id": "copy"}}
    run.ask("q2", at=other)
    run.ask("q3", at=other)
    assert [message.text for message in store.get("copy")] == ["q0", "t0", "q1", "t1", "q2", "t2", "q3", "t3"]


def test_a_live_reply_of_a_branch_that_was_left_is_removed(store: HistoryStore) -> None:
    own, ours = Asked(None), Asked(store)
    ours.model.callbacks = [live_replies(store, "t")]
    for run in (own, ours):
        for text in ("q0", "q1"):
            list(run.agent.stream({"messages": [HumanMessage(text)]}, CONFIG, stream_mode="messages"))
        run.ask("q2", at=run.checkpoint("q0", "t0"))
    assert ours.model.sent == own.model.sent
    assert [message.text for message in store.get("t")] == own.texts


def test_an_agent_in_a_tool_removes_nothing(store: HistoryStore) -> None:
    """It has a separate state in each call, also if the caller of the outer agent has named a checkpoint."""
    inner: Any = create_agent(Model(sent=[]), middleware=[ConversationMiddleware(store)])

    @tool
    def look() -> str:
        """Ask another agent."""
        return str(inner.invoke({"messages": [HumanMessage("q inner")]})["messages"][-1].text)

    run = Asked(store)
    middleware: Any = [ConversationMiddleware(store)]
    run.agent = create_agent(run.model, [look], middleware=middleware, checkpointer=InMemorySaver())
    run.ask("q0", "look", "q1")
    before = [message.text for message in store.get("t")]
    assert "q inner" in before
    run.ask("look", at=run.agent.get_state(CONFIG).config)
    after = [message.text for message in store.get("t")]
    assert after[: len(before)] == before
    assert after.count("q inner") > before.count("q inner")

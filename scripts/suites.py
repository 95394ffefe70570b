"""Runs the tests that agent frameworks have for their own stores, with an adapter of this package in their place.

FOLDER has the sources of the frameworks, fetched by hand, each in a folder of its own (see SUITES). Their tests are not
changed: a plugin of pytest replaces the framework's class before they are imported. Prints how many of the tests that
pass with the framework's own class pass with the adapter, and the names of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from redis_history import AsyncHistoryStore, HistoryStore
from redis_history.embedded import EmbeddedServer


class Suite(NamedTuple):
    """A folder with sources, the tests in it, and what replaces the framework's classes."""

    folder: str
    tests: tuple[str, ...]
    patch: Callable[[str], None]


def namespace(key: object) -> str:
    return f"suite-{uuid.uuid5(uuid.NAMESPACE_OID, repr(key)).hex}"


def put(name: str, value: Any, *modules: Any) -> None:
    for module in modules:
        setattr(module, name, value)


def openai_agents(url: str) -> None:
    import agents
    import agents.memory
    import agents.memory.sqlite_session

    from redis_history.integrations.openai_agents import AgentsSession

    class SQLiteSession(AgentsSession):
        def __init__(self, session_id: str, db_path: Any = ":memory:", *_: Any, **options: Any) -> None:
            place = uuid.uuid4() if str(db_path) == ":memory:" else db_path
            settings = options.get("session_settings")
            super().__init__(session_id, HistoryStore(url, namespace=namespace(place)), session_settings=settings)

        async def _pop_item_with_validation(self, validate: object = None) -> Any:  # EncryptedSession calls it
            return await self.pop_item()

        def close(self) -> None:
            pass

    put("SQLiteSession", SQLiteSession, agents, agents.memory, agents.memory.sqlite_session)


def google_adk(url: str) -> None:
    import google.adk.sessions
    from google.adk.sessions import database_session_service, in_memory_session_service

    from redis_history.integrations.google_adk import AdkSessionService

    class Service(AdkSessionService):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(AsyncHistoryStore(url, namespace=namespace(uuid.uuid4())))

    put("InMemorySessionService", Service, google.adk.sessions, in_memory_session_service)
    put("DatabaseSessionService", Service, database_session_service)


def agent_framework(url: str) -> None:
    import agent_framework

    from redis_history.integrations.agent_framework import AgentFrameworkHistory

    class Provider(AgentFrameworkHistory):
        def __init__(self, source_id: str = "in_memory", **options: Any) -> None:
            store = AsyncHistoryStore(url, namespace=namespace(uuid.uuid4()))
            options.pop("skip_excluded", None)
            super().__init__(store, source_id, **options)

    put("InMemoryHistoryProvider", Provider, agent_framework, agent_framework._sessions)


def langchain(url: str) -> None:
    import langchain_core.chat_history as module

    from redis_history.integrations.langchain import LangChainHistory

    class History(LangChainHistory):
        def __init__(self, messages: Any = (), **_: Any) -> None:
            super().__init__("s", HistoryStore(url, namespace=namespace(uuid.uuid4())))
            self.add_messages(messages)

    put("InMemoryChatMessageHistory", History, module)


def langchain_agents(url: str) -> None:
    """Each agent also has the middleware. Calls without a thread have a conversation of their own."""
    import langchain.agents
    import langchain.agents.factory as module
    from langgraph.config import get_config

    from redis_history.integrations.langchain_agent import ConversationMiddleware

    class Middleware(ConversationMiddleware):
        def _current(self) -> str:
            return str(get_config().get("configurable", {}).get("thread_id") or self._call)

        def before_agent(self, state: Any, runtime: Any) -> Any:
            self._call = uuid.uuid4()
            return super().before_agent(state, runtime)

        async def abefore_agent(self, state: Any, runtime: Any) -> Any:
            self._call = uuid.uuid4()
            return await super().abefore_agent(state, runtime)

    create = module.create_agent

    def create_agent(*arguments: Any, middleware: Any = (), **options: Any) -> Any:
        own = Middleware(HistoryStore(url, namespace=namespace(uuid.uuid4())))
        return create(*arguments, middleware=[own, *middleware], **options)

    put("create_agent", create_agent, module, langchain.agents)


def llama_index(url: str) -> None:
    from llama_index.core.storage import chat_store
    from llama_index.core.storage.chat_store import simple_chat_store

    from redis_history.integrations.llama_index import LlamaIndexChatStore

    class Store(LlamaIndexChatStore):
        def __init__(self, **_: Any) -> None:
            super().__init__(HistoryStore(url, namespace=namespace(uuid.uuid4())))

    put("SimpleChatStore", Store, chat_store, simple_chat_store)


def pydantic_ai(url: str) -> None:
    """Every message history that an agent is given was stored and loaded."""
    from pydantic_ai import Agent

    from redis_history.integrations.pydantic_ai import PydanticAIHistory

    run = Agent.iter

    def loaded(messages: Any) -> Any:
        with HistoryStore(url, namespace=namespace(uuid.uuid4())) as store:
            history = PydanticAIHistory("s", store)
            history.append_sync(messages)
            return history.load_sync()

    @asynccontextmanager
    async def stored(self: Any, *arguments: Any, message_history: Any = None, **options: Any) -> AsyncIterator[Any]:
        if message_history:  # in a thread: the tests refuse calls that block their loop
            message_history = await asyncio.to_thread(loaded, message_history)
        async with run(self, *arguments, message_history=message_history, **options) as found:
            yield found

    put("iter", stored, Agent)


def strands(url: str) -> None:
    module = import_module("tests.fixtures.mock_session_repository")  # of Strands

    from redis_history.integrations.strands import StrandsSessionRepository

    class Repository(StrandsSessionRepository):
        def __init__(self) -> None:
            super().__init__(HistoryStore(url, namespace=namespace(uuid.uuid4())))

    put("MockedSessionRepository", Repository, module)


SUITES = {
    "openai-agents": Suite(
        "openai-agents",
        (
            "tests/memory/test_session.py",
            "tests/memory/test_session_limit.py",
            "tests/memory/test_session_context_wrapper.py",
            "tests/memory/test_session_persistence_sanitize.py",
            "tests/memory/test_openai_responses_compaction_session.py",
            "tests/extensions/memory/test_encrypt_session.py",
        ),
        openai_agents,
    ),
    "google-adk": Suite("adk-python", ("tests/unittests/sessions/test_session_service.py",), google_adk),
    "agent-framework": Suite("agent-framework", ("python/packages/core/tests/core/test_sessions.py",), agent_framework),
    "langchain": Suite(
        "langchain-core",
        ("tests/unit_tests/chat_history/test_chat_history.py", "tests/unit_tests/runnables/test_history.py"),
        langchain,
    ),
    "langchain-agents": Suite("langchain", ("tests/unit_tests/agents",), langchain_agents),
    "llama-index": Suite(
        "llama_index",
        (
            "llama-index-core/tests/storage/chat_store/test_simple_chat_store.py",
            "llama-index-core/tests/memory/test_chat_memory_buffer.py",
        ),
        llama_index,
    ),
    "strands": Suite(
        "strands",
        (
            "tests/strands/session/test_repository_session_manager.py",
            "tests/strands/agent/test_agent.py",
            "tests/strands/multiagent/test_graph.py",
            "tests/strands/multiagent/test_swarm.py",
        ),
        strands,
    ),
    "pydantic-ai": Suite("pydantic-ai", ("tests/test_agent.py", "tests/test_history_processor.py"), pydantic_ai),
}


def pytest_configure() -> None:
    """This file is also the plugin."""
    if url := os.environ["SUITE_URL"]:
        SUITES[os.environ["SUITE"]].patch(url)


def outcomes(name: str, folder: Path, url: str) -> dict[str, bool] | str:
    """Whether each test passed with the adapter, without a URL with the framework's own class; or what went wrong."""
    suite = SUITES[name]
    root = folder / suite.folder
    tests = [test for test in suite.tests if (root / test).exists()]
    if not tests:
        return f"no sources in {root}"
    path = os.pathsep.join([*map(str, Path(__file__).resolve().parents[:2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "SUITE": name, "SUITE_URL": url, "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as reports:
        report = Path(reports) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "suites", "-p", "no:randomly", "-q", f"--junitxml={report}"]
        command += ["--continue-on-collection-errors"]
        command += ["-o", "asyncio_mode=auto", "-o", "addopts=", "-o", "filterwarnings=", *tests]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=900)
        if not report.exists():
            return f"the tests could not be collected\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        cases = list(ElementTree.parse(report).iter("testcase"))
    bad = ("failure", "error", "skipped")
    return {f"{one.get('classname')}::{one.get('name')}": not any(map(one.findall, bad)) for one in cases}


def run(name: str, folder: Path, url: str) -> str:
    own, ours = (outcomes(name, folder, where) for where in ("", url))
    if isinstance(own, str) or isinstance(ours, str):
        return f"{name}: {own if isinstance(own, str) else ours}"
    expected = [test for test, passed in own.items() if passed]
    failed = [test for test in expected if not ours.get(test)]
    return "\n    ".join([f"{name}: {len(expected) - len(failed)} of {len(expected)} passed", *failed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the sources of the frameworks")
    parser.add_argument("frameworks", nargs="*", choices=[*SUITES, []], help="by default all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedServer(directory).start()
        try:
            for name in options.frameworks or SUITES:
                print(run(name, options.folder.resolve(), server.url), flush=True)
        finally:
            server.close()


if __name__ == "__main__":
    main()

"""docs/how-to/frameworks.md names each public method of a framework's own class that an adapter lacks."""

import re
from typing import Any

import pytest
from agent_framework import HistoryProvider, InMemoryHistoryProvider
from agents.extensions.memory import RedisSession
from agents.memory import SessionABC
from google.adk.sessions import BaseSessionService, InMemorySessionService
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from llama_index.core.storage.chat_store import BaseChatStore, SimpleChatStore
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from llama_index.storage.chat_store.redis import RedisChatStore
from pydantic import BaseModel
from strands.session import SessionRepository

from redis_history.integrations.agent_framework import AgentFrameworkHistory
from redis_history.integrations.google_adk import AdkSessionService
from redis_history.integrations.langchain import LangChainHistory
from redis_history.integrations.llama_index import LlamaIndexChatStore, LlamaIndexMemoryStore
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.strands import StrandsSessionRepository
from tests.docs.pages import DOCS, rows, sections


@pytest.mark.parametrize(
    ("name", "adapter", "contract", "theirs"),
    [
        ("Agent Framework", AgentFrameworkHistory, HistoryProvider, [InMemoryHistoryProvider]),
        ("Google ADK", AdkSessionService, BaseSessionService, [InMemorySessionService]),
        ("LangChain", LangChainHistory, BaseChatMessageHistory, [InMemoryChatMessageHistory]),
        ("LlamaIndex", LlamaIndexChatStore, BaseChatStore, [RedisChatStore, SimpleChatStore]),
        ("LlamaIndex", LlamaIndexMemoryStore, AsyncDBChatStore, [SQLAlchemyChatStore]),
        ("OpenAI Agents", AgentsSession, SessionABC, [RedisSession]),
        ("Strands", StrandsSessionRepository, SessionRepository, []),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_an_adapter_lacks_is_documented(name: str, adapter: Any, contract: Any, theirs: list[Any]) -> None:
    table = rows(sections(DOCS / "how-to" / "frameworks.md")["Beside the frameworks' own classes"])
    documented = {found for row in table if row[0] == name for found in re.findall(r"`(\w+)`", row[2])}
    ours = _public(adapter)
    assert not _public(contract) - ours
    for other in theirs:
        missing = {method for method in _public(other) - ours if callable(getattr(other, method))}
        assert missing <= documented


def _public(kind: Any) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - set(dir(BaseModel))

"""Adapters that let agent frameworks use a store, one module per framework. Each framework is a separate extra.

| module | extra | implements |
|---|---|---|
| `agent_framework` | `agent-framework` | a `HistoryProvider` of Microsoft Agent Framework |
| `claude_agent_sdk` | `claude-agent-sdk` | a `SessionStore` of the Claude Agent SDK |
| `google_adk` | `google-adk` | a `BaseSessionService` of Google's Agent Development Kit |
| `langchain` | `langchain` | a `BaseChatMessageHistory` |
| `langchain_agent` | `langchain-agents` | a middleware for `create_agent` |
| `llama_index` | `llama-index` | an `AsyncDBChatStore` and a `BaseChatStore` |
| `mcp_server` | `mcp` | a server of the Model Context Protocol |
| `openai_agents` | `openai-agents` | a `Session` |
| `pydantic_ai` | `pydantic-ai` | the message history of a conversation |
| `strands` | `strands` | a `SessionRepository` of Strands Agents |
| `telemetry` | `opentelemetry` | spans and metrics of a store |

Importing a module without its framework raises MissingExtraError. Messages are stored as `Message`, so one framework
can continue a conversation of another.
"""

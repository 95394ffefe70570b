"""Histories of agent frameworks on our stores, one file each. Every framework is an extra of its own.

| module | extra | what it is |
|---|---|---|
| `langchain` | `langchain` | a `BaseChatMessageHistory` |
| `llama_index` | `llama-index` | a `BaseChatStore` |
| `openai_agents` | `openai-agents` | a `Session` |
| `pydantic_ai` | `pydantic-ai` | the message history of a conversation |

Importing one without its package raises MissingExtraError. Messages are stored in our own form, so that one framework
can go on where another stopped.
"""

"""LLM conversation history in Redis."""

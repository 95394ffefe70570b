"""Conversations in Redis, Valkey or memory: operations, the drivers that execute them, search, and the two faces."""

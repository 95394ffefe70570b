"""The tools of an agent over a store: histories, prompts, compaction, capture and tools."""

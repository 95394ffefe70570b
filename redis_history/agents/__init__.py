"""What an agent does with a store: histories, prompts, compaction, capture and tools."""

"""What carries out operations: the memory of this process, and what concerns Redis servers."""

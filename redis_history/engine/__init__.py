"""The execution of operations: in the memory of this process, and details of Redis servers."""

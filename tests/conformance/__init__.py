"""One set of tests for every backend, synchronous and asynchronous."""

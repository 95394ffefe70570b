"""Search: text, queries, ranking and the calls of the server, all pure."""

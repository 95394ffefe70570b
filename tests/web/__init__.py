"""The live view: its HTTP interface, its streams, its security, and the command that serves it."""

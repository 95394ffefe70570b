"""Stored bytes of messages, as files: what one version wrote, every later one must read."""

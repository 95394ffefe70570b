"""The demo, `redis-history demo`: agent processes replay conversations, a subscriber follows, a compressor keeps the
conversations short."""

"""The demo: agents replay conversations, a subscriber follows, a compressor keeps the conversations short."""

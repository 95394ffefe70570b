"""Record the turns of an agent: pure helpers, and `capture.capture`."""

"""Recording the turns of an agent: what is pure of it, and `capture.capture`."""

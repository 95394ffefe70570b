"""The Redis backend: keys, scripts, and the pure step from an operation to a call; the drivers are in _async, _sync."""

"""The documentation is tested like code."""

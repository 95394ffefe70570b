"""Helpers for several tests: servers, waiting, faults."""

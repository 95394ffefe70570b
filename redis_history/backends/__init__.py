"""Where conversations are kept."""

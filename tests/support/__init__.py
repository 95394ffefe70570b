"""What several tests need: servers, waiting, faults."""

"""The promises of the README, tried on real servers with several processes and broken connections."""

"""The backend in the memory of this process, and the base of custom backends."""

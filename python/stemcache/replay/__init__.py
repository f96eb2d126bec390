"""Replay of real serving traces through the real index and the real allocators. Needs numpy, not torch."""

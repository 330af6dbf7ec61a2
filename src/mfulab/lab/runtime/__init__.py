"""Runs as processes: the warm worker that forks them, their devices, limits and ends."""

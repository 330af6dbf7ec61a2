"""Runs as processes: the warm worker that forks them, and their devices, time limits and ends."""

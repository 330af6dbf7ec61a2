"""A job's journal and its ladder, and a serving engine's own counters."""

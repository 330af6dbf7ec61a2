"""The seminar's printed numbers, computed again."""

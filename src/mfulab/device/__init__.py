"""This device: its identity, its peaks, and its state."""

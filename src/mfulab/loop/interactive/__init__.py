"""`mfulab.measure` around a user's own loop."""

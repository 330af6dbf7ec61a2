"""The `mfulab` command."""

"""The `mfulab` command and the entry points of scripts/."""

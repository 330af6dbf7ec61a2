"""Times one access to memory: `python scripts/probe_memory.py pattern=random working_set_bytes=1048576`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("probe_memory")

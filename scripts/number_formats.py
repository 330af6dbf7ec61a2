"""Shows what a number format costs: `python scripts/number_formats.py precision=bf16`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("number_formats")

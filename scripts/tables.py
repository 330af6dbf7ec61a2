"""Joins rows into results/tables/*.csv."""

from mfulab.tables.build import main

if __name__ == "__main__":
    main()

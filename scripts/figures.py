"""Draws the figures of the tables into reports/figures/."""

from mfulab.report.figures import main

if __name__ == "__main__":
    main()

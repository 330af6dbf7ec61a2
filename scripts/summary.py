"""Prints what was measured, and where the page is."""

from mfulab.report.summary import main

if __name__ == "__main__":
    main()

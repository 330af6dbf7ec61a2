"""Writes the page reports/report.html from the tables."""

from mfulab.report.page.document import main

if __name__ == "__main__":
    main()

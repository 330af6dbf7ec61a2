"""Records this machine's finished results in results/reference/, or checks what is recorded."""

import sys

from mfulab.tables.recording import main

if __name__ == "__main__":
    sys.exit(main())

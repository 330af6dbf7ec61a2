"""The `mfulab` command: `mfulab watch` shows the ladder of a running device."""

import sys
from collections.abc import Sequence

USAGE = "usage: mfulab watch [--help]\n\nShows the utilization ladder of a running device, once a second."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit status."""
    match list(sys.argv[1:] if arguments is None else arguments):
        case ["watch", *rest]:
            from mfulab.cli import watch

            return watch.main(rest)
        case ["-h" | "--help"]:
            print(USAGE)
            return 0
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

"""The `mfulab` command: `mfulab watch` shows the ladder of a running device."""

import sys
from collections.abc import Sequence

USAGE = """usage: mfulab watch [--help]           the utilization ladder of a running device, once a second
       mfulab peak [DEVICE [FORMAT]]   dense peaks of a device by name or PCI id, or of the one at hand
       mfulab trace FILE… [--help]     MFU beside utilization, from traces of torch.profiler"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit status."""
    match list(sys.argv[1:] if arguments is None else arguments):
        case ["watch", *rest]:
            from mfulab.cli import watch

            return watch.main(rest)
        case ["peak", *rest] if len(rest) <= 2 and not any(word.startswith("-") for word in rest):
            from mfulab.cli import peak

            return peak.show(*rest)
        case ["trace", *rest]:
            from mfulab.cli import trace

            return trace.main(rest)
        case ["-h" | "--help"]:
            print(USAGE)
            return 0
    print(USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

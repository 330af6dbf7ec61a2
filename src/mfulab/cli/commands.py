"""The subcommands of `mfulab`, each with its reader, its function and its summary. Help lists them
from here, without importing a command."""

from collections.abc import Mapping
from dataclasses import dataclass

CHECKOUT = "Of a sweep, in a checkout or beside its results: measure, refine, compare"
SPEED = "Of a trace, a model or a speed that you have"
ANY = "Of any command, any node"
LOOP = "Beside your own loop, engine or job"
MAINTAINERS = "For recordings and maintainers"
READERS = (CHECKOUT, SPEED, ANY, LOOP, MAINTAINERS)


@dataclass(frozen=True)
class Entry:
    """A subcommand: its reader, `module:function` below mfulab/cli/, and the first sentence of its
    help."""

    reader: str
    function: str
    summary: str


COMMANDS: Mapping[str, Entry] = {
    "run": Entry(
        CHECKOUT,
        "standalone:run",
        "Run one measurement, and those that its numbers are joined with, without Snakemake.",
    ),
    "tables": Entry(
        MAINTAINERS,
        "recordings:tables",
        "Join rows into tables.",
    ),
    "figures": Entry(
        MAINTAINERS,
        "pages:figures",
        "Draw the figures of the tables.",
    ),
    "slides": Entry(
        MAINTAINERS,
        "pages:slides",
        "Draw the figures of one text of the seminar as slides, 16:9.",
    ),
    "topics": Entry(
        MAINTAINERS,
        "pages:topics",
        (
            "Count the seminar's topics by state, and name each ✓ that no recorded row, figure or "
            "cell bears out."
        ),
    ),
    "page": Entry(
        MAINTAINERS,
        "pages:page",
        "Write the page from the tables.",
    ),
    "summary": Entry(
        CHECKOUT,
        "pages:summary",
        "Print what was measured, and where the page is.",
    ),
    "compare": Entry(
        CHECKOUT,
        "trace_compare:either",
        (
            "Compare two sets of results run by run: commits or machines; the status is 1 where a"
            " run is slower. Or two traces."
        ),
    ),
    "paired": Entry(
        MAINTAINERS,
        "paired:run",
        "Measure this checkout and another in turn, so that drift hits both alike, and compare them.",
    ),
    "refine": Entry(
        CHECKOUT,
        "refine:run",
        (
            "Measure again the runs whose times are least certain, that fail a check or were not "
            "steady; the status is 3 if some are left."
        ),
    ),
    "record": Entry(
        MAINTAINERS,
        "recordings:record",
        "Record a machine's finished results in results/reference/.",
    ),
    "collect": Entry(
        MAINTAINERS,
        "recordings:collect",
        "Merge results of other machines into this folder's; the status is 1 where something was left out.",
    ),
    "seminar": Entry(
        MAINTAINERS,
        "recordings:seminar",
        "Compute the numbers of the seminar's material anew, as CSV.",
    ),
    "flops": Entry(
        SPEED,
        "flops:show",
        "Count MODEL's FLOPs by layer, forward and backward, without a device.",
    ),
    "peak": Entry(
        SPEED,
        "peak:show",
        (
            "Print dense peaks of DEVICE (a name or PCI id; without one: the local device), in "
            "PRECISION or in all."
        ),
    ),
    "fits": Entry(
        SPEED,
        "fits:show",
        (
            "Predict the peak memory of MODEL's step by part, whether it fits a device, and the "
            "largest batch that does."
        ),
    ),
    "bits": Entry(
        SPEED,
        "bits:show",
        (
            "Decode a bit PATTERN of a number format (0x7fc00000), or encode a value (0.1): sign, "
            "exponent, fraction, value, kind, and unit in the last place."
        ),
    ),
    "explain": Entry(
        SPEED,
        "explain:show",
        "Give a speed as MFU by every convention of the field, and find the one behind a reported number.",
    ),
    "trace": Entry(
        SPEED,
        "trace:run",
        (
            "Read traces of torch.profiler, Nsight Systems, JAX and rocprofv3: MFU beside "
            "utilization, and the lost milliseconds."
        ),
    ),
    "gate": Entry(
        ANY,
        "gate:run",
        (
            "Measure two commands of any project in turn, and say whether the second is slower "
            "than noise explains."
        ),
    ),
    "check": Entry(
        ANY,
        "check:run",
        (
            "Check in under a minute whether this node's device is as fast as an equal one: "
            "products, memory, clock, throttling."
        ),
    ),
    "measure": Entry(
        LOOP,
        "measure:run",
        "Run a training or inference script as python would, and print the ladder of its model's steps.",
    ),
    "watch": Entry(
        LOOP,
        "watch:run",
        "Show the utilization ladder of a running device, and MFU of processes that mfulab.measure measures.",
    ),
    "goodput": Entry(
        LOOP,
        "goodput:show",
        "Show what a job's wall time went to, from devices held to MFU and useful tokens.",
    ),
    "schema": Entry(
        MAINTAINERS,
        "schema:run",
        "Print the JSON Schema of a measurement's config or row; without MEASUREMENT, a table of every key.",
    ),
}

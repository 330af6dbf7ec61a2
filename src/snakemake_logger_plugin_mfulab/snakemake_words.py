"""Recognises messages of Snakemake itself by their English words.

Snakemake gives these messages no event, and the same level as messages that a user needs. Nothing
else tells them apart, and it has no translations.
"""

import re

# Begin messages that Snakemake repeats in every run; anything else that it says is shown.
ROUTINE = (
    "Assuming unrestricted shared filesystem",
    "Building DAG",
    "Complete log(s)",
    "Conda environments: ignored",
    "Elapsed time",
    "Execute ",
    "Reasons:",
    "Select jobs",
    "Singularity containers: ignored",
    "This was a dry-run",
    "Unlocked working directory",
    "Using shell",
    "host:",
    # those of the first page
    "Warning: the following output files of rule tables were not present",
)
# Begin the reasons of a job in a dry run that go without saying.
OBVIOUS = ("Missing output", "Input files updated by another job")
# Occur in messages about jobs that ended with Snakemake.
ENDED = re.compile(
    r"Will exit after|CalledProcessError|At least one job did not complete|Shutting down"
)
SIGNALLED = "died with <Signals.SIGINT"  # in the message of a job that Ctrl-C ended
AFTER_LOG = " (check log file(s) for error details)"  # behind the path of a failed job's log


def is_routine(message: str) -> bool:
    """True for a message of every run, which is not shown."""
    return message.startswith(ROUTINE)


def is_obvious(reason: str) -> bool:
    """True for a job's reason that goes without saying in a dry run."""
    return reason.startswith(OBVIOUS)


def is_of_an_end(message: str) -> bool:
    """True for a message about jobs that ended with Snakemake."""
    return ENDED.search(message) is not None


def is_signalled(message: str) -> bool:
    """True for a message about a job that Ctrl-C ended."""
    return SIGNALLED in message


def path_of_log(log: str) -> str:
    """Path of a failed job's log, without the hint behind it."""
    return log.removesuffix(AFTER_LOG)

"""The `mfulab` command: a subcommand's module is imported when it is asked for.

Completion in bash, which click makes from the options: eval "$(_MFULAB_COMPLETE=bash_source mfulab)"
"""

import errno
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

import mfulab
from mfulab.cli.commands import COMMANDS, READERS
from mfulab.cli.options import HELP, Command
from mfulab.core.printing import say

# What the loader says of a library for which there is no memory.
UNMAPPED = "failed to map segment"
MISTAKE = 2


class Subcommands(click.Group):
    """The command itself, whose help lists the subcommands by who needs them, each sentence whole.
    Neither help nor completion of a name imports one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].function.partition(":")
        found: Command = getattr(import_module(f"mfulab.cli.{module}"), function)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for reader in READERS:
            own = []
            for name, entry in COMMANDS.items():
                if entry.reader == reader:
                    own.append((name, entry.summary))
            with formatter.section(reader):
                formatter.write_dl(own)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = []
        for name, entry in COMMANDS.items():
            if name.startswith(incomplete):
                names.append(CompletionItem(name, help=entry.summary))
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=Subcommands,
    context_settings={"help_option_names": HELP, "show_default": True},
    epilog="docs/glossary.md explains the terms, docs/exit_codes.md the exit codes.",
)
@click.version_option(mfulab.__version__, prog_name="mfulab")
def tree() -> None:
    """Model FLOPs utilization beside device utilization."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit status, 2 after a mistake in the arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments) or HELP[:1]
    _mend_columns()
    with _any_letter():
        status = _status(given)
    # a script of the user's: its streams and its errors are its own
    if callable(status):
        return status()
    return status


def _mend_columns() -> None:
    """A terminal of no width would show nothing, and one of a million letters fill the memory."""
    columns = os.environ.get("COLUMNS", "80")
    is_number = columns.isdecimal() and len(columns) < 5
    if not is_number or not int(columns):
        del os.environ["COLUMNS"]


@contextmanager
def _any_letter() -> Iterator[None]:
    """Lets streams show `?` for letters that their encoding lacks."""
    streams = []
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "errors"):
            streams.append((stream, stream.errors))
    for stream, _ in streams:
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        yield
    finally:
        for stream, errors in streams:
            with suppress(AttributeError, ValueError):
                stream.reconfigure(errors=errors)  # type: ignore[union-attr]


def _status(given: Sequence[str]) -> Any:
    """The exit status, or what is to be called for it. A mistake, or a file that cannot be used, is
    one sentence."""
    from mfulab.core.errors import ConfigurationError, UnsupportedError, lacks

    try:
        return tree.main(list(given), prog_name="mfulab", standalone_mode=False) or 0
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue(), end="", file=sys.stderr)
        _answer_refused(given, error.format_message())
        return error.exit_code
    except click.Abort:
        return 128 + 2  # SIGINT
    except (ConfigurationError, UnsupportedError) as error:
        sentence = str(error)
    except ModuleNotFoundError as error:
        sentence = lacks("This", error.name or "")
        if not sentence:
            raise
    except BrokenPipeError:  # as of `mfulab … | head`
        _discard_output()
        return 0
    except (MemoryError, ImportError) as error:
        is_for_memory = isinstance(error, MemoryError) or UNMAPPED in str(error)
        if not is_for_memory:
            raise
        sentence = "there is not enough memory: a limit (ulimit -v, a container's) or the machine's is reached."
    except OSError as error:
        sentence = _of_file(error)
        if not sentence:
            raise
    say(f"mfulab: {sentence}", file=sys.stderr)
    _answer_refused(given, sentence)
    return MISTAKE


def _answer_refused(given: Sequence[str], sentence: str) -> None:
    """Prints that there is no answer, where JSON was asked for on the standard output."""
    options, _, _ = " ".join(given).partition(" -- ")
    is_file = given[0] == "measure"  # whose --json names a file
    if is_file or not re.search(r" --json\b| --format[ =]json\b", options):
        return
    from mfulab.core.answer import refused
    from mfulab.core.printing import say_json

    say_json(refused(sentence))


def _of_file(error: OSError) -> str:
    """Names the file that cannot be used, or says that the output cannot; empty for anything
    else."""
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}."
    if error.errno is None:  # of our own reader, which names the file
        return str(error)
    if error.errno in (errno.ENOSPC, errno.EIO):
        _discard_output()
        return f"the output cannot be written: {error.strerror}"
    return ""


def _discard_output() -> None:
    """Sends away what is still to be written when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

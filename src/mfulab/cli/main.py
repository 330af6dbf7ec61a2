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
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import mfulab
from mfulab.cli.commands import COMMANDS, READERS
from mfulab.cli.help import Told
from mfulab.cli.options import HELP, Command, ExtraArgumentError, RefusedValueError
from mfulab.core.printing import say

if TYPE_CHECKING:
    from mfulab.core.said import Number, Said, said_by

# Of a file that cannot be used, by the system's number; others are told in its own words.
OF_FILES = {
    errno.ENOENT: "file_missing",
    errno.EACCES: "no_permission",
    errno.EISDIR: "is_a_folder",
}
# What the loader says of a library for which there is no memory.
UNMAPPED = "failed to map segment"
MISTAKE = 2


class Subcommands(Told, click.Group):
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        is_option = name.startswith("-")
        if name not in COMMANDS and not is_option and not ctx.resilient_parsing:
            from mfulab.core.errors import unknown

            raise unknown("command", name, COMMANDS, "mfulab --help")
        return super().resolve_command(ctx, args)

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
    from mfulab.core.said import Said
    from mfulab.core.terminal_language import error_in_words, in_words

    told: Said | None
    try:
        return tree.main(list(given), prog_name="mfulab", standalone_mode=False) or 0
    except click.ClickException as error:
        say(_mistake(error), end="", file=sys.stderr)
        _answer_refused(given, error.format_message())
        return error.exit_code
    except click.Abort:
        return 128 + 2  # SIGINT
    except (ConfigurationError, UnsupportedError) as error:
        return _refuse(given, error_in_words(error), str(error))
    except ModuleNotFoundError as error:
        told = lacks(Said("this"), error.name or "")
        if told is None:
            raise
    except BrokenPipeError:  # as of `mfulab … | head`
        _discard_output()
        return 0
    except (MemoryError, ImportError) as error:
        is_for_memory = isinstance(error, MemoryError) or UNMAPPED in str(error)
        if not is_for_memory:
            raise
        told = Said("no_memory_left")
    except OSError as error:
        told = _of_file(error)
        if told is None:
            raise
    return _refuse(given, in_words(told), str(told))


def _refuse(given: Sequence[str], sentence: str, english: str) -> int:
    """Says why nothing was done: in the terminal's language, in JSON in English."""
    say(f"mfulab: {sentence}", file=sys.stderr)
    _answer_refused(given, english)
    return MISTAKE


def _said(key: str, **numbers: "Number | Said") -> str:
    """A sentence of the catalogues in the terminal's language."""
    from mfulab.core.said import Said
    from mfulab.core.terminal_language import in_words

    return in_words(Said(key, numbers))


def _mistake(error: click.ClickException) -> str:
    """Message for a mistake in the arguments, framed in the terminal's language."""
    from mfulab.core.terminal_language import usual_language

    context = error.ctx if isinstance(error, click.UsageError) else None
    if usual_language() == "en" or context is None:
        shown = io.StringIO()
        error.show(shown)
        return shown.getvalue()
    why = error.format_message()
    if isinstance(error, click.NoSuchOption):
        why = _said("no_such_option", option=error.option_name)
    elif isinstance(error, click.MissingParameter) and error.param is not None:
        why = _missing(error.param, context)
    elif isinstance(error, ExtraArgumentError):
        why = _said("extra_argument", argument=error.words)
    elif isinstance(error, RefusedValueError) and error.param is not None:
        name = error.param.get_error_hint(context)
        why = _said("invalid_value", name=name, why=_said(error.said.key, **error.said.numbers))
    elif isinstance(error, click.BadOptionUsage):
        why = _said(_of_option(error, context), option=error.option_name)
    usage = context.get_usage().partition(" ")[2]
    return _said("mistake", usage=usage, command=context.command_path, why=why) + "\n"


def _missing(param: click.Parameter, context: click.Context) -> str:
    """Sentence on an argument or option that a command needs and was not given."""
    if isinstance(param, click.Option):
        return _said("missing_option", option=param.opts[0])
    return _said("missing_argument", argument=param.make_metavar(context))


def _of_option(error: click.BadOptionUsage, context: click.Context) -> str:
    """Key of what is wrong with an option's use: its value lacks, or it takes none."""
    for param in context.command.params:
        is_it = error.option_name in param.opts
        if is_it and isinstance(param, click.Option) and param.is_flag:
            return "option_takes_none"
    return "option_needs_value"


def _answer_refused(given: Sequence[str], sentence: str) -> None:
    """Prints that there is no answer, where JSON was asked for on the standard output."""
    options, _, _ = " ".join(given).partition(" -- ")
    is_file = given[0] == "measure"  # whose --json names a file
    if is_file or not re.search(r" --json\b| --format[ =]json\b", options):
        return
    from mfulab.core.answer import refused
    from mfulab.core.printing import say_json

    say_json(refused(sentence))


def _of_file(error: OSError) -> "Said | None":
    """Names the file that cannot be used, or says that the output cannot; None for anything
    else."""
    from mfulab.core.said import Said

    if error.filename is not None:
        key = OF_FILES.get(error.errno or 0, "of_file")
        return Said(key, {"file": os.fsdecode(error.filename), "why": error.strerror or ""})
    if error.errno is None:  # of our own reader, which names the file
        return said_by(error)
    if error.errno in (errno.ENOSPC, errno.EIO):
        _discard_output()
        return Said("output_not_written", {"error": error.strerror})
    return None


def _discard_output() -> None:
    """Sends away what is still to be written when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

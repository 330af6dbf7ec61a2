"""The `mfulab` command. A subcommand's module is imported only when it is called.

Completion in bash, which click makes from the options: eval "$(_MFULAB_COMPLETE=bash_source mfulab)"
"""

import errno
import io
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import mfulab
from mfulab.cli.commands import COMMANDS, READERS
from mfulab.cli.help import LocalisedCommand
from mfulab.cli.options import HELP, Command, ExtraArgumentError, RefusedValueError
from mfulab.core.printing import say

if TYPE_CHECKING:
    from mfulab.core.said import Number, Said

# Keys of sentences for a file that cannot be used; other errors keep the system's message.
OF_FILES = {
    errno.ENOENT: "file_missing",
    errno.EACCES: "no_permission",
    errno.EISDIR: "is_a_folder",
}
# Message of the dynamic loader when there is no memory for a library.
UNMAPPED = "failed to map segment"
MISTAKE = 2


class Subcommands(LocalisedCommand, click.Group):
    """The command `mfulab`. Its help lists the subcommands by the readers who need them. Neither
    help nor completion imports a subcommand."""

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
            from mfulab.core.errors import COMMAND, unknown

            raise unknown("command", name, COMMANDS, "mfulab --help", COMMAND)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for reader in READERS:
            rows = []
            for name, entry in COMMANDS.items():
                if entry.reader == reader:
                    rows.append((name, entry.summary))
            with formatter.section(reader):
                formatter.write_dl(rows)

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
    """Runs a subcommand and returns its exit status; 2 for a mistake in the arguments. `arguments`
    default to those of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments) or HELP[:1]
    _drop_unusable_columns()
    from mfulab.core.terminal_language import speaking

    with _replacing_letters(), speaking(_language_in(words)):
        status = _status(words)
    # A user's script: its streams and its errors must stay untouched.
    if callable(status):
        return status()
    return status


def _language_in(words: Sequence[str]) -> str:
    """Value of `--language`, in which mistakes are told as well; empty without a known one."""
    language = ""
    for word, following in itertools.pairwise([*words, ""]):
        if word == "--language":
            language = following
        elif word.startswith("--language="):
            language = word.partition("=")[2]
    if not language:
        return ""
    from mfulab.core.language import LANGUAGES

    return language if language in LANGUAGES else ""


def _drop_unusable_columns() -> None:
    """Unsets COLUMNS unless it is from 1 to 9999: rich prints nothing at width 0, and a huge width
    fills the memory."""
    columns = os.environ.get("COLUMNS", "80")
    is_number = columns.isdecimal() and len(columns) < 5
    if not is_number or not int(columns):
        del os.environ["COLUMNS"]


@contextmanager
def _replacing_letters() -> Iterator[None]:
    """Lets stdout and stderr print `?` for characters that their encoding lacks."""
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


def _status(words: Sequence[str]) -> Any:
    """Runs the subcommand. Returns the exit status, or a callable that returns it. Mistakes and
    unusable files are reported in one sentence."""
    from mfulab.core.errors import ConfigurationError, UnsupportedError, lacks
    from mfulab.core.said import Said
    from mfulab.core.terminal_language import error_in_words, in_words

    reason: Said | None
    try:
        return tree.main(list(words), prog_name="mfulab", standalone_mode=False) or 0
    except click.ClickException as error:
        say(_mistake(error), end="", file=sys.stderr)
        _print_refused_answer(words, error.format_message())
        return error.exit_code
    except click.Abort:
        return 128 + 2  # SIGINT
    except (ConfigurationError, UnsupportedError) as error:
        return _refuse(words, error_in_words(error), str(error))
    except ModuleNotFoundError as error:
        reason = lacks(Said("this"), error.name or "")
        if reason is None:
            raise
    except BrokenPipeError:  # for example in `mfulab … | head`
        _discard_output()
        return 0
    except (MemoryError, ImportError) as error:
        is_for_memory = isinstance(error, MemoryError) or UNMAPPED in str(error)
        if not is_for_memory:
            raise
        reason = Said("no_memory_left")
    except OSError as error:
        reason = _of_file(error)
        if reason is None:
            raise
    return _refuse(words, in_words(reason), str(reason))


def _refuse(words: Sequence[str], sentence: str, english: str) -> int:
    """Prints why nothing was done, in the terminal's language and, for JSON, in English. Returns
    the exit status."""
    say(f"mfulab: {sentence}", file=sys.stderr)
    _print_refused_answer(words, english)
    return MISTAKE


def _sentence(key: str, **numbers: "Number | Said") -> str:
    """A sentence of the catalogues in the terminal's language."""
    from mfulab.core.said import Said
    from mfulab.core.terminal_language import in_words

    return in_words(Said(key, numbers))


def _mistake(error: click.ClickException) -> str:
    """Message for a mistake in the arguments, in the terminal's language."""
    from mfulab.core.terminal_language import usual_language

    context = error.ctx if isinstance(error, click.UsageError) else None
    if usual_language() == "en" or context is None:
        shown = io.StringIO()
        error.show(shown)
        return shown.getvalue()
    why = error.format_message()
    if isinstance(error, click.NoSuchOption):
        why = _sentence("no_such_option", option=error.option_name)
    elif isinstance(error, click.MissingParameter) and error.param is not None:
        why = _missing(error.param, context)
    elif isinstance(error, ExtraArgumentError):
        why = _sentence("extra_argument", argument=error.words)
    elif isinstance(error, RefusedValueError) and error.param is not None:
        name = error.param.get_error_hint(context)
        why = _sentence("invalid_value", name=name, why=error.said)
    elif isinstance(error, click.BadOptionUsage):
        why = _sentence(_option_mistake(error, context), option=error.option_name)
    usage = context.get_usage().partition(" ")[2]
    return _sentence("mistake", usage=usage, command=context.command_path, why=why) + "\n"


def _missing(param: click.Parameter, context: click.Context) -> str:
    """Sentence about a missing argument or option."""
    if isinstance(param, click.Option):
        return _sentence("missing_option", option=param.opts[0])
    return _sentence("missing_argument", argument=param.make_metavar(context))


def _option_mistake(error: click.BadOptionUsage, context: click.Context) -> str:
    """Key of the sentence for a misused option: its value is missing, or it takes none."""
    for param in context.command.params:
        is_misused = error.option_name in param.opts
        if is_misused and isinstance(param, click.Option) and param.is_flag:
            return "option_takes_none"
    return "option_needs_value"


def _print_refused_answer(words: Sequence[str], sentence: str) -> None:
    """Prints an answer without a value if the command's options ask for JSON on stdout."""
    if not _asks_for_json(words):
        return
    from mfulab.core.answer import refused
    from mfulab.core.printing import say_json

    say_json(refused(sentence))


def _asks_for_json(words: Sequence[str]) -> bool:
    """True if the command's options ask for JSON on stdout."""
    name, *arguments = words
    if name not in COMMANDS:
        return False
    try:
        command = tree.get_command(click.Context(tree), name)
    except ImportError:  # a package is missing, so that the command's options are unknown
        return "--json" in itertools.takewhile("--".__ne__, arguments)
    return isinstance(command, Command) and command.asks_for_json(arguments)


def _of_file(error: OSError) -> "Said | None":
    """The sentence for a file that cannot be used, or for an output that cannot be written; None
    for any other error."""
    from mfulab.core.said import Said, said_by

    if error.filename is not None:
        key = OF_FILES.get(error.errno or 0, "of_file")
        return Said(key, file=os.fsdecode(error.filename), why=error.strerror or "")
    if error.errno is None:  # raised by core.files, whose message names the file
        return said_by(error)
    if error.errno in (errno.ENOSPC, errno.EIO):
        _discard_output()
        return Said("output_not_written", error=error.strerror)
    return None


def _discard_output() -> None:
    """Redirects stdout to /dev/null, so that flushing at exit cannot fail on a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

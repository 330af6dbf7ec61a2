"""The `mfulab` command: the tree of subcommands in commands.yaml; the code of each is imported when it runs.

Completion in bash, which click makes from the tree: eval "$(_MFULAB_COMPLETE=bash_source mfulab)"
"""

import errno
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
from click.shell_completion import CompletionItem

import mfulab
from mfulab.core.data import data

HELP = ["-h", "--help"]
STEPS = sorted(file.parent.name for file in Path(__file__).parents[1].glob("measurements/*/__init__.py"))


class Name(click.ParamType):
    """One of the names that an attribute of a module holds, or gives; imported once a value is given or completed."""

    def __init__(self, name: str, module: str, attribute: str, is_open: bool = False) -> None:
        self.name, self._module, self._attribute = name, module, attribute
        self._is_open = is_open  # to what its command knows beside them: a path, a driver's name of a device

    def _choices(self) -> Iterable[str]:
        names = getattr(import_module(self._module), self._attribute)
        return names() if callable(names) else names

    def convert(self, value: str, param: Any, ctx: Any) -> str:
        from mfulab.core.errors import unknown

        if not self._is_open and value not in (choices := list(self._choices())):
            raise unknown(self.name, value, choices, f"{self._module.replace('.', '/')}/")
        return value

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._choices() if name.lower().startswith(incomplete.lower())]


class Share(click.ParamType):
    """A share of one, positive: `5%` or `0.05`."""

    name = "share"

    def convert(self, value: str, param: Any, ctx: Any) -> float:
        share = 0.0
        with suppress(ValueError):
            share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        if not 0 < share < 1:
            self.fail(f"{value!r} is no share between 0 and 1, such as 5% or 0.05.", param)
        return share


class Overrides(click.ParamType):
    """Words for Hydra, of which `group=option` is completed; bash gives what stands around `=` apart."""

    name = "overrides"

    def _choices(self) -> Mapping[str, Iterable[str]]:
        """Names of each key's choices."""
        from mfulab.lab.planning import keys
        from mfulab.lab.planning.load import CONFIG

        return {group: keys.choices(CONFIG, group) for group in keys.groups(CONFIG)}

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        key, equals, _ = incomplete.rpartition("=")
        words, choices = [word for word in ctx.params.get("words") or () if word != "="], self._choices()
        asked = key or (words[-1] if words and words[-1] in choices else "")
        offered = (f"{key}{equals}{value}" for value in choices.get(asked, ())) if asked else (f"{n}=" for n in choices)
        return [CompletionItem(word) for word in sorted(offered) if word.lower().startswith(incomplete.lower())]


class Question(Overrides):
    """Words of `mfulab explain`, completed in the same way."""

    def _choices(self) -> Mapping[str, Iterable[str]]:
        from mfulab.cli.explain import NUMBERS
        from mfulab.mfu.work import Mode

        offered = {key: TYPES[key]._choices() for key in ("model", "device", "precision")}
        return dict.fromkeys(NUMBERS, ()) | {"mode": get_args(Mode)} | offered


TYPES: Mapping[str, Any] = {
    "path": click.Path(path_type=Path),
    "file": click.Path(path_type=Path, dir_okay=False),  # to write, which a folder would give way to
    "share": Share(),
    "positive": click.FloatRange(0, min_open=True),
    "nonnegative": click.FloatRange(0),
    "count": click.IntRange(min=1),
    "depth": click.IntRange(min=0),
    "port": click.IntRange(0, 65535),
    "step": Name("measurement", __name__, "STEPS"),
    "words": Overrides(),
    "question": Question(),
    "device": Name("device", "mfulab.device.datasheets", "typed_names", is_open=True),
    "model": Name("model", "mfulab.mfu.models", "names", is_open=True),
    "figure": Name("figure", "mfulab.lab.report.figures", "modules"),
    "language": Name("language", "mfulab.core.language", "LANGUAGES"),
    "precision": Name("precision", "mfulab.device.peaks", "UNITS"),
}


class Readers(click.Group):
    """The command itself, whose help lists the subcommands by who needs them, maintainers last, each sentence whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        readers = {name: getattr(command, "reader", "") for name, command in self.commands.items()}
        for reader in sorted(dict.fromkeys(readers.values()), key=lambda reader: reader.startswith("For ")):
            with formatter.section(reader):
                own = [(name, command.help or "") for name, command in self.commands.items() if readers[name] == reader]
                formatter.write_dl([(name, text.partition("\n\n")[0]) for name, text in own])


class Several(click.Option):
    """An option that takes every word up to the next option: `--only ceilings roofline`."""


class Command(click.Command):
    """A subcommand as commands.yaml declares it; what its function returns is the exit status."""

    reader = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        lacks_all = not args and any(param.required for param in self.params)
        if not ctx.resilient_parsing and (lacks_all or args[:1] == HELP[-1:]):  # later ones are Hydra's
            click.echo(ctx.get_help())
            ctx.exit()
        several = {name for param in self.params if isinstance(param, Several) for name in param.opts}
        words, option = list[str](), ""
        for word in args:
            option = option if not word.startswith("-") else word if word in several else ""
            words += [word] if not option else [option, word] if word != option else []
        return super().parse_args(ctx, words)


def _command(declared: Mapping[str, Any]) -> Command:
    module, _, function = declared["calls"].partition(":")

    def call(**given: Any) -> Any:
        return getattr(import_module(f"mfulab.{module}"), function)(**given)

    made = Command(
        None,
        callback=call,
        params=[_parameter(name, **settings) for name, settings in declared["parameters"].items()],
        help=declared["help"],
        epilog=f"\b\nExample:\n  mfulab {declared['example']}",
        context_settings=declared.get("settings"),
    )
    made.reader = declared.get("reader", "Others")
    return made


def _parameter(name: str, type: Any = None, several: bool = False, **settings: Any) -> click.Parameter:
    settings["type"] = click.Choice(type) if isinstance(type, list) else TYPES.get(type)
    if not name.startswith("-"):
        return click.Argument([name], nargs=-1 if several else 1, **settings)
    names = [name, *settings.pop("as", "").split()]
    return Several(names, multiple=True, **settings) if several else click.Option(names, **settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand; returns the exit status, 2 after a mistake in the arguments."""
    from mfulab.core.errors import ConfigurationError, UnsupportedError, lacks

    streams = [(stream, stream.errors) for stream in (sys.stdout, sys.stderr) if hasattr(stream, "errors")]
    for stream in (sys.stdout, sys.stderr):  # one that lacks a letter shows `?`
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    if not os.environ.get("COLUMNS", "80").isdecimal() or not int(os.environ.get("COLUMNS", "80")):
        del os.environ["COLUMNS"]  # a width of zero shows nothing
    given = list(sys.argv[1:] if arguments is None else arguments) or HELP[:1]
    declared = data(Path(__file__).with_name("commands.yaml"))
    tree = Readers(
        commands={name: _command(settings) for name, settings in declared.items()},
        help="Model FLOPs utilization beside device utilization.",
        context_settings={"help_option_names": HELP, "show_default": True},
    )
    click.version_option(mfulab.__version__, prog_name="mfulab")(tree)
    try:
        status = tree.main(given, prog_name="mfulab", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except (ConfigurationError, UnsupportedError) as error:
        sentence = str(error)
    except ModuleNotFoundError as error:
        if not (sentence := lacks("This", error.name or "")):
            raise
    except OSError as error:
        is_pipe = isinstance(error, BrokenPipeError)  # as of `mfulab … | head`
        if not is_pipe and (error.filename or error.errno not in (errno.ENOSPC, errno.EIO)):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where the rest goes when Python ends
        if is_pipe:
            return 0
        sentence = f"the output cannot be written: {error.strerror}"
    else:
        if not callable(status):
            return status
        for stream, errors in streams:  # a script of the user's: its streams and its errors are its own
            with suppress(AttributeError, ValueError):
                stream.reconfigure(errors=errors)  # type: ignore[union-attr]
        return status()
    print(f"mfulab: {sentence}", file=sys.stderr)
    return 2

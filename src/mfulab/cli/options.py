"""Types of the subcommands' options, which reject unusable values; options that several commands
share; the decorator for a command."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from mfulab.cli.commands import COMMANDS
from mfulab.cli.help import LocalisedCommand
from mfulab.core.printing import say
from mfulab.core.said import Said
from mfulab.core.terminal_language import usual_language

HELP = ["-h", "--help"]
STEPS = sorted(
    file.parent.name for file in Path(__file__).parents[1].glob("measurements/*/__init__.py")
)
SHOWN = 60  # characters of a value in a message
LONGEST_NAME, LONGEST_PATH = 255, 4095  # bytes, on Linux
N = TypeVar("N", int, float)


def short(value: object) -> str:
    """A value as messages show it: its repr, cut after `SHOWN` characters."""
    text = repr(value)
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}…"


class RefusedValueError(click.BadParameter):
    """A value that an option or argument does not accept; `said` is the reason, for any
    language."""

    def __init__(
        self,
        key: str,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
        **numbers: float | str,
    ) -> None:
        self.said = Said(key, value=short(value), **numbers)
        super().__init__(str(self.said), ctx, param)


class Choice(click.Choice[str]):
    """One of a few fixed words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self.choices:
            return super().convert(value, param, ctx)
        choices = ", ".join(map(repr, self.choices))
        raise RefusedValueError("no_such_choice", value, param, ctx, choices=choices)


class Number(click.ParamType, Generic[N]):
    """A number from `least` to `most`, both included, and neither infinity nor NaN."""

    def __init__(self, kind: type[N], least: N, most: N) -> None:
        self.name = "integer" if kind is int else "number"
        self._kind: type[N] = kind
        self._least: N = least
        self._most: N = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> N:
        with suppress(ValueError):  # raised for a number of 5,000 digits too
            number = self._kind(value)
            if self._least <= number <= self._most:
                return number
        key = "no_integer" if self._kind is int else "no_number_within"
        raise RefusedValueError(key, value, param, ctx, least=self._least, most=self._most)


class Share(click.ParamType):
    """A fraction between 0 and 1, both excluded: `5%` or `0.05`."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value)
        share = 0.0
        with suppress(ValueError):
            share = float(text.removesuffix("%"))
        if text.endswith("%"):
            share /= 100
        if not 0 < share < 1:
            raise RefusedValueError("no_share", value, param, ctx)
        return share


class Text(click.ParamType):
    """A text in UTF-8 without zero bytes."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RefusedValueError("no_utf8", value, param, ctx) from None
        if "\0" in value:
            raise RefusedValueError("zero_byte", value, param, ctx)
        return str(value)


class Name(Text):
    """One of the names in an attribute of a module, which may be a function; imported only when
    needed. If `is_open`, other texts are valid too, such as a path."""

    def __init__(self, name: str, module: str, attribute: str, is_open: bool = False) -> None:
        self.name = name
        self._module = module
        self._attribute = attribute
        self._is_open = is_open

    def choices(self) -> Iterable[str]:
        """All names."""
        names = getattr(import_module(self._module), self._attribute)
        if callable(names):
            return names()
        return names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from mfulab.core.errors import unknown

        name = super().convert(value, param, ctx)
        if self._is_open:
            return name
        choices = list(self.choices())
        if name not in choices:
            raise unknown(self.name, name, choices, f"{self._module.replace('.', '/')}/")
        return name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return beginning(self.choices(), incomplete)


def beginning(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Completions for a shell: the words that begin with `incomplete`, in any case."""
    prefix = incomplete.lower()
    return [CompletionItem(word) for word in words if word.lower().startswith(prefix)]


class Location(click.Path):
    """A path that a file system can hold. With `is_file` it must not be a folder, with `is_folder`
    not a file; it need not exist."""

    def __init__(self, is_file: bool = False, is_folder: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=not is_file)
        self.is_folder = is_folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = os.fsencode(value)
        if not path or b"\0" in path:
            raise RefusedValueError("no_path", value, param, ctx)
        longest = max(map(len, path.split(b"/")))
        if longest > LONGEST_NAME or len(path) > LONGEST_PATH:
            bounds = {"name": LONGEST_NAME, "path": LONGEST_PATH}
            raise RefusedValueError("path_too_long", os.fsdecode(value), param, ctx, **bounds)
        if self.is_folder and Path(os.fsdecode(path)).is_file():
            raise RefusedValueError("file_for_a_folder", os.fsdecode(value), param, ctx)
        return super().convert(value, param, ctx)


class Address(Text):
    """A server's http or https address; `http://` may be omitted."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        address = super().convert(value, param, ctx)
        with suppress(ValueError):  # an invalid host or port
            parts = urlsplit(address if "://" in address else f"http://{address}")
            is_plain = address.isprintable() and " " not in address
            is_web = parts.scheme in ("http", "https")
            if is_plain and is_web and parts.hostname and parts.port != 0:
                return address
        raise RefusedValueError("no_address", value, param, ctx)


class Overrides(Text):
    """Overrides for Hydra, with completion of `group=option`. Bash passes the texts around `=` as
    separate words."""

    name = "overrides"

    def choices(self) -> Mapping[str, Iterable[str]]:
        """Valid values per key; empty if any are."""
        from mfulab.lab.planning import keys
        from mfulab.lab.planning.load import CONFIG

        return {group: keys.choices(CONFIG, group) for group in keys.groups(CONFIG)}

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        key, equals, _ = incomplete.rpartition("=")
        words = [word for word in ctx.params.get("words") or () if word != "="]
        choices = self.choices()
        if not key and words and words[-1] in choices:
            offered = list(choices[words[-1]])
        elif key:
            offered = [f"{key}{equals}{value}" for value in choices.get(key, ())]
        else:
            offered = [f"{name}=" for name in choices]
        return beginning(sorted(offered), incomplete)


PATH = Location()
FILE = Location(is_file=True)
FOLDER = Location(is_folder=True)
SHARE = Share()
TEXT = Text()
ADDRESS = Address()
WORDS = Overrides()
SECONDS = Number(float, 0.001, 1e6)
SECONDS_OR_NONE = Number(float, 0.0, 1e6)
MINUTES = Number(float, 0.001, 1e5)
MINUTES_OR_NONE = Number(float, 0.0, 1e5)
HOURS = Number(float, 0.01, 1e5)
COUNT = Number(int, 1, 10**9)
DEPTH = Number(int, 0, 1000)
PORT = Number(int, 0, 65535)
STEP = Name("measurement", __name__, "STEPS")
DEVICE = Name("device", "mfulab.device.datasheets", "typed_names", is_open=True)
MODEL = Name("model", "mfulab.mfu.models", "names", is_open=True)
FIGURE = Name("figure", "mfulab.lab.report.figures", "modules")
LANGUAGES = Name("language", "mfulab.core.language", "LANGUAGES")
PRECISION = Name("precision", "mfulab.device.peaks", "UNITS")


class Several(click.Option):
    """An option that takes every word up to the next option: `--only ceilings roofline`."""


class ExtraArgumentError(click.UsageError):
    """Words that a command does not take; unlike click's own error it keeps them."""

    def __init__(self, words: list[str], ctx: click.Context) -> None:
        self.words = " ".join(words)
        super().__init__(f"Got unexpected extra argument ({self.words})", ctx)


class Command(LocalisedCommand):
    """A subcommand; its function returns the exit status."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        lacks_all = not args and any(param.required for param in self.params)
        asks_help = lacks_all or args[:1] == HELP[-1:]  # a later --help is for Hydra
        if asks_help and not ctx.resilient_parsing:
            say(ctx.get_help())
            ctx.exit()
        takes_more = ctx.allow_extra_args
        ctx.allow_extra_args = True
        try:
            extra = super().parse_args(ctx, self._repeat_options(args))
        except click.BadOptionUsage as error:  # which click raises without a context
            error.ctx = error.ctx or ctx
            raise
        ctx.allow_extra_args = takes_more
        if extra and not takes_more and not ctx.resilient_parsing:
            raise ExtraArgumentError(extra, ctx)
        return extra

    def asks_for_json(self, args: list[str]) -> bool:
        """True if the command's options ask for JSON on stdout, whatever else is wrong in the
        arguments."""
        settings = {**self.context_settings, "ignore_unknown_options": True}
        context = click.Context(self, resilient_parsing=True, **settings)
        given, _, _ = self.make_parser(context).parse_args(self._repeat_options(args))
        return given.get("as_json") is True or given.get("form") == "json"

    def _repeat_options(self, args: list[str]) -> list[str]:
        """Puts the name of a `Several` option before each of its values, as click expects."""
        several = set[str]()
        for param in self.params:
            if isinstance(param, Several):
                several.update(param.opts)
        words = list[str]()
        option = ""
        for word in args:
            if word.startswith("-"):
                option = word if word in several else ""
                if option:
                    continue
            elif option:
                words.append(option)
            words.append(word)
        return words


def command(name: str, example: str, more: str = "", **settings: object) -> Callable[..., Command]:
    """Decorator that makes a function the subcommand `name`. `more` follows the first sentence of
    its help; `settings` are click's context settings."""
    paragraphs = filter(None, (COMMANDS[name].summary, more))
    decorator = click.command(
        name,
        cls=Command,
        help="\n\n".join(paragraphs),
        epilog=f"\b\nExample:\n  mfulab {example}",
        context_settings=settings,
    )

    def decorate(function: Callable[..., object]) -> Command:
        subcommand = decorator(function)
        for param in subcommand.params:
            if param.type is click.STRING:
                param.type = TEXT
        return subcommand

    return decorate


def several(*names: str, **settings: object) -> Callable[..., Any]:
    """Declares an option that takes every word up to the next option."""
    return click.option(*names, cls=Several, multiple=True, **settings)


FORMAT = click.option(
    "--format",
    "form",
    type=Choice(["text", "json", "markdown"]),
    default="text",
    help="Output format; markdown suits a comment on a pull request.",
)


def listing(names: Callable[[], Iterable[str]], noun: str) -> Callable[..., Any]:
    """An option `--list`, which prints `names`, one per line, and ends the command."""

    def show(context: click.Context, option: click.Parameter, is_wanted: bool) -> None:
        if is_wanted:
            say("\n".join(names()))
            context.exit()

    return click.option(
        "--list",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help=f"Print the names of all {noun}.",
    )


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
TABLES = click.option(
    "--tables", type=FOLDER, default="results/tables", help="Folder of the tables."
)


LANGUAGE = click.option(
    "--language",
    type=LANGUAGES,
    default=usual_language,
    show_default="that of LANG",
    help="Language of the output.",
)
NOTICEABLE = click.option(
    "--noticeable",
    type=SHARE,
    default="2%",
    help="Smallest relative difference that matters: 2% or 0.02.",
)
GATE = click.option(
    "--gate",
    type=SHARE,
    help="For CI: exit with status 1 if a run is slower by more than this: 5% or 0.05.",
)
CSV = click.option(
    "--out",
    type=FILE,
    help="Also write the comparison as CSV; the page shows the one in results/tables/comparison.csv.",
)
TOKENS = click.option(
    "--sequence-length", type=COUNT, help="Tokens per sample; by default the model's own."
)
PROMETHEUS = click.option(
    "--prometheus",
    type=PORT,
    metavar="PORT",
    help="Serve the numbers to Prometheus at 127.0.0.1:PORT/metrics; 0: any free port.",
)
DEVICE_KIND = click.option(
    "--device",
    type=Name("device", "mfulab.device.vendors", "choices"),
    default="auto",
    help="Kind of device; auto: a GPU if one is usable, otherwise the CPU.",
)

"""Help of the commands in the terminal's language. English is in the code; the YAML files of this
folder map it to other languages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

NARROWEST = 24  # columns of an option's text
REQUIRED = "[required]"  # click's mark behind the text of an option
VERBATIM = "\b"  # click's mark for a paragraph that keeps its line breaks


class LocalisedCommand(click.Command):
    """A command or group whose help is in the terminal's language."""

    def get_help(self, ctx: click.Context) -> str:
        texts = translations()
        if not texts:
            return super().get_help(ctx)
        formatter = Translated(texts, width=ctx.make_formatter().width)
        self.format_help(ctx, formatter)
        return formatter.getvalue().rstrip("\n")


def translations() -> Mapping[str, str]:
    """Translations of the English help texts into the terminal's language; empty if it is English
    or has no file."""
    from mfulab.core.terminal_language import usual_language

    language = usual_language()
    file = Path(__file__).with_name(f"{language}.yaml")
    if language == "en" or not file.is_file():
        return {}
    from mfulab.core.data import data

    texts: Mapping[str, str] = data(file)
    return texts


class Translated(click.HelpFormatter):
    """Formats help with translated texts, counting wide characters as two columns. A text without a
    translation stays English."""

    def __init__(self, texts: Mapping[str, str], width: int) -> None:
        super().__init__(width=width)
        self._texts = texts

    def translate(self, text: str) -> str:
        """The translation of a text, or the text itself if there is none."""
        return self._texts.get(text, text)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, f"{self.translate(prefix or 'Usage:')} ")

    def write_heading(self, heading: str) -> None:
        super().write_heading(self.translate(heading))

    def write_text(self, text: str) -> None:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            lines = [f"{'':{self.current_indent}}{line}" for line in self._lines(paragraph)]
            paragraphs.append("\n".join(lines))
        self.write("\n\n".join(paragraphs) + "\n")

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        rows = list(rows)
        longest = max((len(name) for name, _ in rows), default=0)
        first = min(longest, col_max) + col_spacing
        room = max(self.width - self.current_indent - first, NARROWEST)
        indent = f"{'':{self.current_indent}}"
        for name, text in rows:
            lines = [*broken(self._translate_row(text), room)]
            head = f"{name:{first}}"
            if len(name) > first - col_spacing:
                self.write(f"{indent}{name}\n")
                head = f"{'':{first}}"
            self.write(f"{indent}{head}{lines[0]}\n")
            for line in lines[1:]:
                self.write(f"{indent}{'':{first}}{line}\n")

    def _lines(self, paragraph: str) -> Iterable[str]:
        first, *others = paragraph.splitlines()
        if first.strip() == VERBATIM:
            return [self.translate(line) for line in others]
        return broken(self.translate(" ".join(paragraph.split())), self.width - self.current_indent)

    def _translate_row(self, text: str) -> str:
        """Translates the text of an option or command, and `[default: 3]` after it separately."""
        stripped = text.strip()
        if stripped.endswith(REQUIRED):
            words = stripped.removesuffix(REQUIRED).strip()
            return f"{self.translate(words)}  {self.translate(REQUIRED)}"
        words, bracket, default = stripped.partition("[default: ")
        if not bracket:
            return self.translate(text)
        shown = self.translate(default.removesuffix("]"))
        return f"{self.translate(words.strip())}  [{self.translate('default')}: {shown}]".strip()


def broken(text: str, width: int) -> Iterator[str]:
    """Breaks a text into lines of at most `width` columns; wide characters count as two. Yields at
    least one line."""
    from rich.cells import cell_len

    line = ""
    for word in re.split(r"(?<=\S) ", text):
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            yield line
            longer = word.strip()
        line = longer
    yield line

"""Help of the commands in the terminal's language: English stands beside each option, another language
in a file here, by the English text."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

NARROWEST = 24  # columns of an option's text
VERBATIM = "\b"  # click's mark of a paragraph whose lines stay


class Told(click.Command):
    """A command, or group, whose help is in the terminal's language."""

    def get_help(self, ctx: click.Context) -> str:
        texts = translations()
        if not texts:
            return super().get_help(ctx)
        formatter = Translated(texts, width=ctx.make_formatter().width)
        self.format_help(ctx, formatter)
        return formatter.getvalue().rstrip("\n")


def translations() -> Mapping[str, str]:
    """Texts in the terminal's language by the English ones; empty for English."""
    from mfulab.core.terminal_language import usual_language

    language = usual_language()
    file = Path(__file__).with_name(f"{language}.yaml")
    if language == "en" or not file.is_file():
        return {}
    from mfulab.core.data import data

    texts: Mapping[str, str] = data(file)
    return texts


class Translated(click.HelpFormatter):
    """Writes help by its translated texts, a wide letter in two columns; what has none stays
    English."""

    def __init__(self, texts: Mapping[str, str], width: int) -> None:
        super().__init__(width=width)
        self._texts = texts

    def told(self, text: str) -> str:
        """The text's translation, or the text itself."""
        return self._texts.get(text, text)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, f"{self.told(prefix or 'Usage:')} ")

    def write_heading(self, heading: str) -> None:
        super().write_heading(self.told(heading))

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
            lines = [*broken(self._of_option(text), room)]
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
            return [self.told(line) for line in others]
        return broken(self.told(" ".join(paragraph.split())), self.width - self.current_indent)

    def _of_option(self, text: str) -> str:
        """An option's text, or a command's; behind that of some stands `[default: 3]`."""
        words, bracket, default = text.strip().partition("[default: ")
        if not bracket:
            return self.told(text)
        shown = self.told(default.removesuffix("]"))
        return f"{self.told(words.strip())}  [{self.told('default')}: {shown}]".strip()


def broken(text: str, width: int) -> Iterator[str]:
    """Lines of at most `width` columns, of which a wide letter takes two; at least one line."""
    from rich.cells import cell_len

    line = ""
    for word in re.split(r"(?<=\S) ", text):
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            yield line
            longer = word.strip()
        line = longer
    yield line

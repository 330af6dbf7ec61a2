"""The Hangul font NanumGothic (NAVER, SIL Open Font License): for figures, and as a subset for the
page."""

import base64
import logging
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont
from matplotlib import font_manager

HANGUL = "NanumGothic"
ON_PAGE = "page hangul"
FILES = {400: "NanumGothic.ttf", 700: "NanumGothicBold.ttf"}


def paths() -> dict[int, Path]:
    """Files of the font by weight; empty if its package is not installed."""
    package = find_spec("koreanize_matplotlib")
    folder = Path(package.origin).parent / "fonts" if package and package.origin else Path()
    found = {}
    for weight, file in FILES.items():
        if package and (folder / file).exists():
            found[weight] = folder / file
    return found


def families() -> list[str]:
    """Registers the Hangul font. Returns the font families of all figures, in the order in which
    glyphs are looked up."""
    fonts = font_manager.fontManager.ttflist
    own = [str(path) for path in paths().values()]
    if own:
        # The system's own copy, whose bold file claims to be semibold too, would be found first.
        fonts[:] = [font for font in fonts if font.name != HANGUL or font.fname in own]
    for weight, path in paths().items():
        if not any(font.fname == str(path) and font.weight == weight for font in fonts):
            # Not addfont: the bold file claims to be semibold, so a search for bold would miss it.
            fonts.append(
                font_manager.FontEntry(
                    fname=str(path),
                    name=HANGUL,
                    weight=weight,
                )
            )
    if paths():
        return ["DejaVu Sans", HANGUL]
    return ["DejaVu Sans"]


def faces(text: str) -> str:
    """CSS with the embedded glyphs of the Hangul letters in `text`; empty if there are none."""
    letters = "".join(sorted(letter for letter in set(text) if _is_hangul(letter)))
    if not letters:
        return ""
    return "".join(
        f'@font-face{{font-family:"{ON_PAGE}";font-weight:{weight};unicode-range:U+1100-11FF,U+AC00-D7A3;'
        f"src:url(data:font/woff;base64,{_subset(path, letters)})}}"
        for weight, path in paths().items()
    )


def _is_hangul(letter: str) -> bool:
    return "ᄀ" <= letter <= "ᇿ" or "가" <= letter <= "힣"


def _subset(path: Path, letters: str) -> str:
    """The font's glyphs for `letters` as a WOFF file in base64."""
    # Warnings about font tables that it edits are of no use here.
    logging.getLogger("fontTools.subset").setLevel(logging.ERROR)
    font = TTFont(path, recalcTimestamp=False)
    cutter = subset.Subsetter(
        subset.Options(layout_features=[], hinting=False, notdef_outline=True)
    )
    cutter.populate(text=letters)
    cutter.subset(font)
    font.flavor = "woff"
    buffer = BytesIO()
    font.save(buffer)
    return base64.b64encode(buffer.getvalue()).decode()

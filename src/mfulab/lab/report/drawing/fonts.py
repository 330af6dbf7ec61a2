"""The Hangul font NanumGothic (NAVER, SIL Open Font License), for figures, and cut to the letters
of a page."""

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
    """The font's files by weight; none where the package is not installed."""
    package = find_spec("koreanize_matplotlib")
    folder = Path(package.origin).parent / "fonts" if package and package.origin else Path()
    found = {}
    for weight, file in FILES.items():
        if package and (folder / file).exists():
            found[weight] = folder / file
    return found


def families() -> list[str]:
    """The fonts of all figures, in the order in which a glyph is looked for; registers the Hangul
    one."""
    fonts = font_manager.fontManager.ttflist
    for weight, path in paths().items():
        if not any(font.fname == str(path) and font.weight == weight for font in fonts):
            # Not addfont: the bold file calls itself semibold, which no search for bold finds.
            fonts.append(font_manager.FontEntry(fname=str(path), name=HANGUL, weight=weight))
    if paths():
        return ["DejaVu Sans", HANGUL]
    return ["DejaVu Sans"]


def faces(text: str) -> str:
    """CSS that brings the font's glyphs for the Hangul of `text` with it; empty without one."""
    letters = sorted(
        {letter for letter in set(text) if "ᄀ" <= letter <= "ᇿ" or "가" <= letter <= "힣"}
    )
    if not letters:
        return ""
    return "".join(
        f'@font-face{{font-family:"{ON_PAGE}";font-weight:{weight};unicode-range:U+1100-11FF,U+AC00-D7A3;'
        f"src:url(data:font/woff;base64,{_cut(path, ''.join(letters))})}}"
        for weight, path in paths().items()
    )


def _cut(path: Path, letters: str) -> str:
    logging.getLogger("fontTools.subset").setLevel(
        logging.ERROR
    )  # it tells of editing tables that no reader needs
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

"""`mfulab watch --engine URL…`: serving engines, and whole fleets, by their own pages for Prometheus."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from mfulab.cli.flops import config_of
from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts
from mfulab.device.local_peak import local_name, local_peak
from mfulab.device.peaks import Peak, peak
from mfulab.loop.goodput.engines import COLUMNS, Page, read, sample_of


def frames(
    urls: Sequence[str], interval_s: float, model: str | None, precision: str, gpu: str | None, devices: int
) -> Iterator[tuple[dict[str, Any], Group]]:
    """Samples of engines over each interval, in seconds, for ever; the parameters are those of `mfulab watch`.

    Raises ConfigurationError if a page cannot be read at first.
    """
    one = peak(gpu, precision) if gpu else local_peak(precision)
    config = config_of(model, {}, None) if model else None
    pages = {url: read(url) for url in urls}
    while True:
        time.sleep(interval_s)
        engines = []
        for url, before in pages.items():
            try:
                pages[url] = after = read(url)
                engines.append(sample_of(url, before, after, config, precision, one, devices))
            except ConfigurationError as error:  # an engine that goes away may come back
                engines.append({"page": url, "engine": before.engine, "model": before.model, "gone": str(error)})
        yield {"unix_s": time.time(), "engines": engines}, picture(engines, pages, one)


def picture(engines: Sequence[dict[str, Any]], pages: dict[str, Page], one: Peak) -> Group:
    """A column an engine, a row each number that one of them has; below it verdicts, and why what is missing is."""
    text = Texts("en", "engine")
    heads = (f"{engine['page']}\n{engine['engine']} {engine['model']}" for engine in engines)
    table = Table("", *(Column(head, justify="right") for head in heads), box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        cells = ["—" if engine.get(name) is None else f"{engine[name]:,.4g}" for engine in engines]
        if set(cells) != {"—"}:
            table.add_row(text(name), *cells)
    lines: list[Any] = [table]
    for engine in engines:
        if "gone" in engine:
            ago = time.monotonic() - pages[engine["page"]].seconds
            lines.append(Text(text("gone", reason=engine["gone"], ago=ago)))
        elif engine["engine"] != "mfulab":
            lines.append(Text(f"{engine['page']}: {text(engine['verdict'])}", style="yellow"))
            of = one.device or local_name()
            lines += [Text(text(key, of=of, why=one.reason), style="dim") for key in engine["missing"]]
    return Group(*lines)

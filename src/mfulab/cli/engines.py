"""`mfulab watch --engine URL…`: throughput, latency and MFU of serving engines, from the pages that
they serve for Prometheus."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from mfulab.cli.flops import config_of
from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts, verdicts
from mfulab.core.parts import Record, Row
from mfulab.core.said import said_by
from mfulab.core.terminal import table
from mfulab.device.local_peak import local_name, local_peak
from mfulab.device.peaks import Peak, peak
from mfulab.device.samplers.reading import UNTOLD
from mfulab.loop.goodput.engines import COLUMNS, sample_of
from mfulab.loop.goodput.pages import Page, Reader


def frames(
    urls: Sequence[str],
    interval_s: float,
    model: str | None,
    precision: str,
    gpu: str | None,
    devices: int,
    language: str,
) -> Iterator[tuple[Record, Group]]:
    """Yields samples of the engines over each interval and a table of them, without end. Raises
    ConfigurationError if no page can be read at first."""
    device_peak = peak(gpu, precision) if gpu else local_peak(precision)
    config = None
    if model:
        config = config_of(model, (), None)
    reader = Reader(urls)
    pages, gone = reader.read()
    if not pages:
        raise next(iter(gone.values()))
    while True:
        time.sleep(interval_s)
        earlier, (read, gone), engines = pages, reader.read(), list[Record]()
        pages = earlier | read  # keeps the last page of an engine that is gone, as it may return
        for url in dict.fromkeys(urls):
            before = {page.replica: page for page in earlier.get(url, ())}
            if url in gone:
                last = before.get("", Page(0.0, "", "", {}))
                names = {"engine": last.engine, "model": last.model}
                engines.append({"page": url, **names, "gone": str(gone[url])})
                continue
            for after in pages[url]:
                if after.replica in before:
                    pair = (before[after.replica], after)
                    engines.append(sample_of(url, *pair, config, precision, device_peak, devices))
        shown = picture(engines, pages, device_peak, gone, language)
        yield {"unix_s": time.time(), "engines": engines}, shown


def picture(
    engines: Sequence[Record],
    pages: Mapping[str, list[Page]],
    device_peak: Peak,
    gone: Mapping[str, ConfigurationError],
    language: str,
) -> Group:
    """Table with a column per engine and a row per number that any of them has. Below it stand
    verdicts and the reasons for missing numbers and for pages that are `gone`."""
    text = Texts(language, "engine")
    heads = []
    for engine in engines:
        name = engine.get("replica") or engine["page"]
        heads.append(f"{name}\n{engine['engine']} {engine['model']}")
    shown = table([""], heads, pad_edge=False)
    for name in COLUMNS:
        cells = ["—" if engine.get(name) is None else f"{engine[name]:,.4g}" for engine in engines]
        if set(cells) != {"—"}:
            shown.add_row(text(name), *cells)
    lines: list[Any] = [shown]
    for engine in engines:
        if "gone" in engine:
            remark = verdicts.say(said_by(gone[engine["page"]]), language)
            last = pages.get(engine["page"])
            if last:
                ago = time.monotonic() - last[0].seconds
                remark = text("gone", reason=remark, ago=ago)
            lines.append(Text(remark))
        elif engine["engine"] != "mfulab" and not engine["replica"]:
            lines.append(Text(f"{engine['page']}: {text(engine['verdict'])}", style="yellow"))
            lines += _missing_lines(engine, device_peak, text)
    return Group(*lines)


def _missing_lines(engine: Row, device_peak: Peak, text: Texts) -> Iterator[Text]:
    """Yields lines that say why columns of an engine are empty."""
    device = device_peak.device or local_name()
    why = verdicts.say(device_peak.reason or UNTOLD, text.language)
    for key in engine["missing"]:
        yield Text(text(key, of=device, why=why), style="dim")

"""Readings of `mfulab watch` for other programs: a line of JSON each time, and a page that Prometheus can scrape."""

import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any

Sample = Mapping[str, Any]
"""Numbers by column name, `name` and `uuid` of the device, and `processes`, each a mapping of its own."""

# https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def json_line(sample: Sample) -> str:
    """One line; what is not known is null."""
    return json.dumps(sample, ensure_ascii=False)


def prometheus_text(sample: Sample) -> str:
    """Every number as a gauge `mfulab_<column>`, a process's as `mfulab_process_<column>`; the unknown is absent."""
    device = {key: str(sample[key]) for key in ("name", "uuid") if sample.get(key)}
    gauges: dict[str, list[str]] = {}
    for column, value in _numbers(sample):
        gauges.setdefault(f"mfulab_{column}", []).append(_line(f"mfulab_{column}", device, value))
    for process in sample.get("processes", ()):
        labels = {key: str(process[key]) for key in ("pid", "name", "precision")}
        for column, value in _numbers(process):
            if column != "pid":
                name = f"mfulab_process_{column}"
                gauges.setdefault(name, []).append(_line(name, labels, value))
    return "".join(f"# TYPE {name} gauge\n" + "".join(lines) for name, lines in gauges.items())


def _numbers(sample: Sample) -> Iterator[tuple[str, float]]:
    for column, value in sample.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield column, value


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    escapes = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
    written = ",".join(f'{key}="{text.translate(escapes)}"' for key, text in labels.items())
    return f"{name}{{{written}}} {value}\n"


class PrometheusPage:
    """`http://127.0.0.1:PORT/metrics` with the latest sample, between `with` and its end; only this machine reaches it.

    Args:
        port: where to listen; 0 takes a free one, told by `address`.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int) -> None:
        self.text = ""
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.text.encode() if self.path == "/metrics" else b"mfulab: see /metrics\n"
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """The terminal is the ladder's."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/metrics"

    def __enter__(self) -> "PrometheusPage":
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def show(self, sample: Sample) -> None:
        """Makes `sample` the latest."""
        self.text = prometheus_text(sample)

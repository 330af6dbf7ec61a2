"""Serves the latest sample of `mfulab watch` as a page for Prometheus, by prometheus-client."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mfulab.core.errors import ConfigurationError
from mfulab.core.parts import is_number
from mfulab.core.printing import say
from mfulab.core.said import of_source

Sample = Mapping[str, Any]
"""Numbers by column name, `name` and `uuid` of the device; `processes` and `engines`, each a mapping of its own."""
# Prefix and labels of the gauges for each part of a sample; "" is the sample itself.
LABELS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "": ("mfulab_", ("name", "uuid")),
    "processes": ("mfulab_process_", ("pid", "name", "precision")),
    "engines": ("mfulab_engine_", ("page", "engine", "model", "precision", "replica")),
}


class Latest(Collector):
    """Exports the numbers of `sample` as gauges `mfulab_<column>`; those of processes and engines
    as `mfulab_process_<column>` and `mfulab_engine_<column>`."""

    sample: Sample = {}  # noqa: RUF012 (replaced as a whole)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauges: dict[str, GaugeMetricFamily] = {}
        for part, (prefix, names) in LABELS.items():
            for sample in self.sample.get(part, ()) if part else [self.sample]:
                labels = {name: str(sample[name]) for name in names if sample.get(name) is not None}
                for column, value in sample.items():
                    if column in names or not is_number(value):
                        continue
                    name = prefix + column
                    if name not in gauges:
                        gauges[name] = GaugeMetricFamily(name, column.replace("_", " "))
                    gauges[name].add_sample(name, labels, value)
        yield from gauges.values()


@contextmanager
def prometheus_page(port: int) -> Iterator[Latest]:
    """Serves `http://127.0.0.1:PORT/metrics` during the block; port 0 takes any free port. Raises
    ConfigurationError if the port is taken."""
    registry = CollectorRegistry()
    latest = Latest()
    registry.register(latest)
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(of_source(f"--prometheus {port}", str(error))) from error
    say(f"Prometheus: http://127.0.0.1:{server.server_port}/metrics", file=sys.stderr)
    try:
        yield latest
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

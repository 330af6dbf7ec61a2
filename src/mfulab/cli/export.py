"""A page for Prometheus with the latest reading of `mfulab watch`, by prometheus-client."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mfulab.core.errors import ConfigurationError
from mfulab.core.printing import say
from mfulab.core.said import of_source

Sample = Mapping[str, Any]
"""Numbers by column name, `name` and `uuid` of the device; `processes` and `engines`, each a mapping of its own."""
LABELS: Mapping[
    str, tuple[str, tuple[str, ...]]
] = {  # of a sample's parts: prefix and labels of their gauges
    "": ("mfulab_", ("name", "uuid")),
    "processes": ("mfulab_process_", ("pid", "name", "precision")),
    "engines": ("mfulab_engine_", ("page", "engine", "model", "precision", "replica")),
}


class Latest(Collector):
    """The numbers of `sample` as gauges `mfulab_<column>`, of a process or engine
    `mfulab_process_<column>`."""

    sample: Sample = {}  # noqa: RUF012 (replaced as a whole)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauges: dict[str, GaugeMetricFamily] = {}
        for what, (prefix, names) in LABELS.items():
            for sample in self.sample.get(what, ()) if what else [self.sample]:
                labels = {name: str(sample[name]) for name in names if sample.get(name) is not None}
                for column, value in sample.items():
                    if (
                        isinstance(value, int | float)
                        and not isinstance(value, bool)
                        and column not in names
                    ):
                        name = prefix + column
                        gauge = gauges.setdefault(
                            name, GaugeMetricFamily(name, column.replace("_", " "))
                        )
                        gauge.add_sample(name, labels, value)
        yield from gauges.values()


@contextmanager
def prometheus_page(port: int) -> Iterator[Latest]:
    """Serves `http://127.0.0.1:PORT/metrics`, 0: any port. Raises ConfigurationError if the port is
    taken."""
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

"""A GPU without GPM beside a dcgm-exporter: a real page whose values change as it is asked."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from support.nvml_stand_in import Gpu, StandIn
from support.processes import HANGS_S, until

from mfulab.device.samplers.reading import sampling
from mfulab.device.vendors import cupti, dcgm, nvidia

UUID, OTHER = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"
LINE = '{name}{{gpu="0",UUID="{uuid}",pci_bus_id="0000:01:00.0",modelName="Tesla T4",Hostname="x"}} {value:.6f}\n'


class Exporter:
    """Serves the page; each value moves on once it was shown so `often`."""

    def __init__(
        self, often=2, fields=("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
    ):
        self.asked, self.often, self.fields = 0, often, fields

    def text(self):
        place = self.asked // self.often
        self.asked += 1
        lines = [
            "# HELP DCGM_FI_PROF_SM_ACTIVE share of cycles\n",
            'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 97\n',
        ]
        for uuid, base in ((UUID, 0.5), (OTHER, 0.1)):
            lines += [
                LINE.format(name=name, uuid=uuid, value=base + place % 2 / 100)
                for name in self.fields
            ]
        return "".join(lines)


@pytest.fixture
def serve(monkeypatch):
    """Starts a page and points MFULAB_DCGM at it; a busy machine may take long to answer."""
    servers = []
    monkeypatch.setattr(dcgm, "PATIENCE_S", HANGS_S)

    def started(exporter):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(exporter.text().encode())

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        monkeypatch.setenv(dcgm.ADDRESS, f"http://127.0.0.1:{server.server_port}/metrics")

    yield started
    for server in servers:
        server.shutdown()


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + LINE.format(
    name="DCGM_FI_PROF_SM_ACTIVE", uuid=UUID, value=0.5).replace("0.500000", "half").encode()])  # fmt: skip
def test_another_service_at_the_exporter_s_address_is_none(answer, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv(dcgm.ADDRESS, f"http://127.0.0.1:{server.getsockname()[1]}/metrics")
        assert dcgm.page(UUID) is None
        thread.join()


def read(exporter=None):
    """Readings of a window in which the exporter was asked ten times."""
    sampler = dcgm.dcgm_sampler(UUID, "this GPU has no GPM", interval_s=0.001)
    sampler.start()
    until(lambda: exporter is None or exporter.asked >= 10)
    return sampler.stop()


def test_the_mean_of_what_appeared_in_the_window_is_this_gpu_s_alone(serve):
    exporter = Exporter()
    serve(exporter)
    found = read(exporter)
    assert 50 <= found["sm_active_percent"].value <= 51
    assert found["sm_active_percent"].value == found["tensor_active_percent"].value
    assert found["occupancy_percent"].value is None
    assert found["occupancy_percent"].reason.key == "not_exported"


def test_an_exporter_that_is_slower_than_the_window_says_nothing(serve):
    exporter = Exporter(often=1000)
    serve(exporter)
    found = read(exporter)["sm_active_percent"]
    assert found.value is None
    assert found.reason.key == "few_exported"
    assert found.reason.key == "few_exported"


def test_without_an_exporter_the_reason_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv(dcgm.ADDRESS, "http://127.0.0.1:9/metrics")
    found = read()
    assert {one.value for one in found.values()} == {None}
    reason = found["tensor_active_percent"].reason
    assert reason.key == "and_no_exporter"
    assert reason.numbers["address"] == "http://127.0.0.1:9/metrics"


def test_a_proxy_is_not_asked_for_this_machine_s_own_page(serve, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    serve(Exporter())
    assert dcgm.page(UUID)["sm_active_percent"] >= 50


@pytest.mark.parametrize(
    "exporter",
    [
        pytest.param(
            SimpleNamespace(text=lambda: "<html>a notebook server</html>"), id="another program"
        ),
        pytest.param(Exporter(fields=()), id="an exporter without the counters of a profile"),
        pytest.param(Exporter(fields=("DCGM_FI_PROF_PCIE_TX_BYTES",)), id="one of other counters"),
    ],
)
def test_a_page_without_this_gpu_s_counters_keeps_no_sampler_away(exporter, serve, monkeypatch):
    StandIn(Gpu(uuid=UUID, gpm=False), Gpu(uuid=OTHER)).install(monkeypatch)
    serve(exporter)
    assert dcgm.page(UUID) is None
    assert source_of(UUID) == cupti.SOURCE
    assert source_of(OTHER) == "GPM", "undisturbed"


@pytest.mark.parametrize(
    "address", ["not an address", "file:///nowhere/at/all", "http://127.0.0.1:99999/metrics"]
)
def test_an_address_that_is_none_costs_nothing_but_the_values(address, monkeypatch):
    monkeypatch.setenv(dcgm.ADDRESS, address)
    assert dcgm.page(UUID) is None


def source_of(uuid):
    with sampling(nvidia.Nvidia().samplers(uuid, ())[:1]) as found:
        pass
    return found[0]["sm_active_percent"].source


def test_gpm_goes_before_it_and_says_who_disturbs_it(serve, monkeypatch):
    monkeypatch.setenv(dcgm.ADDRESS, "http://127.0.0.1:9/metrics")
    StandIn(Gpu(uuid=UUID), Gpu(uuid=OTHER, gpm=False)).install(monkeypatch)
    assert source_of(UUID) == "GPM"
    assert source_of(OTHER) == cupti.SOURCE
    serve(Exporter())
    assert source_of(OTHER) == "DCGM, as its exporter shows it"
    assert source_of(UUID) == "GPM, disturbed by a dcgm-exporter"

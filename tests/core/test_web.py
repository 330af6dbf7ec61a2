"""The client of every request: it ends in time and within its bytes, whatever the server does."""

import json
import threading
import time

import pytest
from support.hostile_servers import (
    DRIPS,
    FLOODS,
    HANDSHAKES,
    OK,
    Answer,
    servers,
    signed_by_itself,
)
from support.processes import HANGS_S
from support.workflow_copy import ROOT

from mfulab.cli import jobs
from mfulab.cli.main import main
from mfulab.core import web
from mfulab.device.vendors import dcgm
from mfulab.loop.goodput import pages

MOST = 1 << 20


@pytest.fixture
def hostile():
    with servers() as started:
        yield started


def ended(before: set[threading.Thread]) -> bool:
    """True once no thread of a request is left; a server's threads are not counted."""
    until = time.monotonic() + HANGS_S
    while time.monotonic() < until:
        left = {each for each in set(threading.enumerate()) - before if "run" in each.name}
        if not left:
            return True
        for thread in left:
            thread.join(0.1)
    return False


@pytest.mark.parametrize(
    ("scheme", "drip"),
    [*(("http", drip) for drip in DRIPS), *(("https", drip) for drip in HANDSHAKES)],
)
def test_what_drips_ends_at_the_deadline_and_so_does_its_thread(hostile, scheme, drip):
    place = hostile.endless((DRIPS if scheme == "http" else HANDSHAKES)[drip])
    before = set(threading.enumerate())
    with pytest.raises(web.WebError):
        web.fetched(f"{scheme}://{place}", 0.3)
    assert ended(before)


@pytest.mark.parametrize("name", FLOODS)
def test_what_has_no_end_is_read_up_to_a_bound(hostile, name):
    place = hostile.endless(FLOODS[name])
    with pytest.raises(web.WebError):
        web.fetched(f"http://{place}", 1.0, MOST)
    if name not in ("continue", "trailers"):  # which are read and dropped until the deadline
        assert hostile.sent < MOST + (16 << 20), "beyond the bound and what sockets hold"


def test_redirects_are_counted(hostile):
    place = hostile.redirecting()
    with pytest.raises(web.WebError, match="302"):
        web.fetched(f"http://{place}", 5.0)
    assert hostile.sent == 1 + web.REDIRECTS


def test_a_redirect_is_followed_and_a_large_page_read(hostile):
    page = b"y" * (MOST - 1)
    end = hostile.plain(OK + b"\r\n" + page)
    moved = hostile.plain(f"HTTP/1.1 301 x\r\nLocation: http://{end}/\r\n\r\n".encode())
    assert web.fetched(f"http://{moved}", 5.0, MOST) == page


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "http://[", "//", "\x1b[2J"]
)
def test_a_redirect_leads_to_no_file_and_no_other_protocol(hostile, target):
    place = hostile.plain(f"HTTP/1.1 302 x\r\nLocation: {target}\r\n\r\n".encode())
    with pytest.raises(web.WebError):
        web.fetched(f"http://{place}", 2.0)


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "ftp://127.0.0.1/", "data:,x", "http://", "http://[", "", "x"]
)
def test_an_address_is_of_http(address):
    with pytest.raises(web.WebError):
        web.fetched(address, 2.0)


def test_a_look_up_that_hangs_is_not_waited_for(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(web.socket, "create_connection", lambda *_: over.wait(30))
    with pytest.raises(web.WebError, match="within"):
        web.fetched("http://example.org", 0.2, by_proxy=False)
    over.set()


PAGE = Answer(OK + b"Content-Length: 2\r\n\r\nhi", b"")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return signed_by_itself(tmp_path_factory.mktemp("tls") / "own.pem")


def test_a_certificate_that_nobody_signed_is_one_sentence(hostile, certificate, capsys):
    place = hostile.by_tls(PAGE, certificate)
    with pytest.raises(web.WebError, match="SSL_CERT_FILE"):
        web.fetched(f"https://{place}", 5.0)
    assert main(["watch", "--engine", f"https://{place}/metrics"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mfulab: --engine https://{place}/metrics: ")
    assert "certificate" in said
    assert said.count("\n") == 1


def test_a_certificate_is_trusted_where_openssl_is_told_so(hostile, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    place = hostile.by_tls(PAGE, certificate)
    assert web.fetched(f"https://{place}", 5.0) == b"hi"


def test_a_certificate_is_of_the_server_that_was_asked(hostile, tmp_path, monkeypatch):
    other = signed_by_itself(tmp_path / "other.pem", "DNS:example.org")
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with pytest.raises(web.WebError, match=r"127\.0\.0\.1"):
        web.fetched(f"https://{hostile.by_tls(PAGE, other)}", 5.0)


@pytest.mark.parametrize("name", ["status", "headers", "body", "chunks", "body of a redirect"])
def test_what_drips_by_tls_ends_at_the_deadline_too(hostile, certificate, monkeypatch, name):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    place = hostile.by_tls(DRIPS[name], certificate)
    before = set(threading.enumerate())
    with pytest.raises(web.WebError):
        web.fetched(f"https://{place}", 1.0)
    assert ended(before)


def test_a_body_by_tls_is_read_up_to_a_bound(hostile, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    place = hostile.by_tls(FLOODS["body"], certificate)
    with pytest.raises(web.WebError, match="MiB"):
        web.fetched(f"https://{place}", 20.0, MOST)


def test_a_redirect_to_a_server_that_speaks_no_tls_is_one_sentence(hostile):
    plain = hostile.plain(OK + b"\r\nhi")
    place = hostile.plain(f"HTTP/1.1 302 x\r\nLocation: https://{plain}/\r\n\r\n".encode())
    with pytest.raises(web.WebError) as refused:
        web.fetched(f"http://{place}", 5.0)
    assert "\n" not in str(refused.value)


def test_nothing_else_opens_a_page():
    """One client for every request."""
    others = [
        path.relative_to(ROOT)
        for path in (ROOT / "src").rglob("*.py")
        if any(word in path.read_text() for word in ("urlopen", "http.client", "urllib.request"))
    ]
    assert [str(path) for path in others] == ["src/mfulab/core/web.py"]


PORTS = ("HTTPServer", "http_server", "socketserver", ".listen(1", "TCPStore(", "AF_INET")


def test_ports_are_opened_where_they_are_asked_for():
    """The exporter's, and those of a run that has several processes; the worker's socket is a
    file."""
    opening = {
        str(path.relative_to(ROOT / "src/mfulab"))
        for path in (ROOT / "src").rglob("*.py")
        if any(word in path.read_text() for word in PORTS)
    }
    expected = {"cli/export.py", "lab/runtime/lifetime.py", "measurements/profile_step/ranks.py"}
    assert opening == expected
    assert "socket.AF_UNIX" in (ROOT / "src/mfulab/lab/runtime/lifetime.py").read_text()


@pytest.mark.parametrize("name", ["status", "trailers", "body of a redirect"])
def test_every_command_that_asks_a_server_ends(hostile, monkeypatch, capsys, name):
    for module, seconds in ((pages, 0.3), (jobs, 0.3)):
        monkeypatch.setattr(module, "DEADLINE_S", seconds)
    place = hostile.endless(DRIPS[name])
    for option in ("--jobs", "--engine"):
        assert main(["watch", option, place]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"mfulab: {option} {place}: ")
        assert said.count("\n") == 1
    monkeypatch.setenv(dcgm.ADDRESS, f"http://{place}")
    assert dcgm.page("GPU-1") is None


DEEP = "[" * 200_000
LABELS = ([], {"pod": {}}, {"pod": ["a"], "modelName": 3}, {"modelName": None, "pod": "a"}, "ab", 7)


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        '{"data": {"result": ' + DEEP,
        '{"data": {"result": [' + "9" * 5000 + "]}}",
        *[
            json.dumps({"data": {"result": [{"metric": each, "value": [0, "1"]}]}})
            for each in LABELS
        ],
        json.dumps({"data": {"result": [{"metric": {"pod": "a"}, "value": [0, {}]}]}}),
        json.dumps({"data": {"result": {"metric": 1}}}),
        json.dumps({"data": {"result": [[]]}}),
    ],
)
def test_an_answer_that_is_none_of_prometheus_is_one_sentence(hostile, capsys, text):
    place = hostile.plain(OK + b"\r\n" + text.encode())
    assert main(["watch", "--jobs", place]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"mfulab: --jobs {place}: ")
    assert said.count("\n") == 1
    assert len(said) < 400


def test_a_page_of_open_braces_is_searched_once(hostile, monkeypatch):
    lines = b'DCGM_FI_PROF_SM_ACTIVE{UUID="' * 100_000
    place = hostile.plain(OK + b"\r\n" + lines + lines.replace(b'="', b'="\n'))
    monkeypatch.setenv(dcgm.ADDRESS, f"http://{place}")
    monkeypatch.setattr(dcgm, "PATIENCE_S", 10)
    assert dcgm.page("GPU-1") is None

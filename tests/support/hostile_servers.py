"""Servers that keep a client waiting or fill its memory, one for each way to do so."""

import contextlib
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
MOVED = b"HTTP/1.1 302 Found\r\nLocation: http://%b/x%d\r\n"
BLOCK = b"x" * (1 << 16)


@dataclass(frozen=True)
class Answer:
    """Bytes that a server sends: `at_once`, and then `then` repeatedly, slowly or as fast as
    possible."""

    at_once: bytes
    then: bytes
    is_slow: bool = True


# Each begins as a valid answer, but never ends.
DRIPS = {
    "nothing": Answer(b"", b""),
    "status": Answer(b"HTTP/1.1 2", b"0"),
    "headers": Answer(OK, b"A"),
    "more headers": Answer(OK, b"A: b\r\n"),
    "continue": Answer(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": Answer(OK + b"\r\n", b"x"),
    "body of a length": Answer(OK + b"Content-Length: 9999999\r\n\r\n", b"x"),
    "chunk sizes": Answer(CHUNKED, b"0"),
    "chunks": Answer(CHUNKED, b"1\r\nx\r\n"),
    "trailers": Answer(CHUNKED + b"1\r\nx\r\n0\r\n", b"A: b\r\n"),
    "body of a redirect": Answer(MOVED % (b"127.0.0.1:9", 1) + b"\r\n", b"x"),
    "status of an error": Answer(b"HTTP/1.1 500 ", b"x"),
}
FLOODS = {
    "body": Answer(OK + b"\r\n", BLOCK, False),
    "body of a length": Answer(OK + b"Content-Length: %d\r\n\r\n" % 10**18, BLOCK, False),
    "one chunk": Answer(CHUNKED + b"%x\r\n" % 10**18, BLOCK, False),
    "chunks": Answer(CHUNKED, b"10000\r\n%b\r\n" % BLOCK, False),
    "continue": Answer(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999, False),
    "trailers": Answer(CHUNKED + b"1\r\nx\r\n0\r\n", b"A: b\r\n" * 999, False),
    "a header": Answer(OK, BLOCK, False),
    "headers": Answer(OK, b"A: b\r\n" * 999, False),
    "body of an error": Answer(b"HTTP/1.1 500 No\r\n\r\n", BLOCK, False),
    "body of a redirect": Answer(MOVED % (b"127.0.0.1:9", 1) + b"\r\n", BLOCK, False),
}


# Sent in place of a TLS handshake: the head of a record announces 16,384 bytes of a message.
HANDSHAKES = {
    "of nothing": Answer(b"", b""),
    "of a head": Answer(b"\x16\x03\x03\x40", b"\x00"),
    "of a message": Answer(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03", b"x"),
    "of alerts": Answer(b"", b"\x15\x03\x03\x00\x02\x01\x5a"),  # a warning: no renegotiation
}


class Servers:
    """Starts servers on the loopback interface. `sent` counts the bytes that they sent."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.sent = 0
        self._started = list[socketserver.ThreadingTCPServer]()

    def start(self, answer: Callable[[Any, str], None], greets: bool = True) -> str:
        """Starts a server that calls `answer` with each connection and its own address, after
        reading the client's first bytes if `greets`. Returns its address."""
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), None)  # type: ignore[arg-type]
        server.daemon_threads = True
        server.block_on_close = False
        address = f"127.0.0.1:{server.server_address[1]}"

        def finish(connection: Any, *_: Any) -> None:
            with contextlib.suppress(OSError):
                if greets:
                    connection.recv(1 << 16)
                answer(connection, address)

        server.finish_request = finish  # type: ignore[method-assign, assignment]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._started.append(server)
        return address

    def endless(self, answer: Answer) -> str:
        """Starts a server whose answer never ends."""

        def send(connection: Any, _: str) -> None:
            connection.sendall(answer.at_once)
            while not self.over.wait(0.02 if answer.is_slow else 0):
                connection.sendall(answer.then)
                self.sent += len(answer.then)

        return self.start(send)

    def redirecting(self) -> str:
        """Starts a server that redirects to itself, each time to another page."""
        count = iter(range(10**9))

        def send(connection: Any, address: str) -> None:
            self.sent += 1  # before the client can have read it
            connection.sendall(MOVED % (address.encode(), next(count)) + b"\r\n")

        return self.start(send)

    def plain(self, answer: bytes) -> str:
        """Starts a server that sends these bytes."""
        return self.start(lambda connection, _: connection.sendall(answer))

    def by_tls(self, answer: Answer, certificate: Path) -> str:
        """Starts a TLS server whose answer never ends. The file holds the certificate and its
        key."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

        def send(connection: Any, _: str) -> None:
            with context.wrap_socket(connection, server_side=True) as safe:
                safe.recv(1 << 16)
                safe.sendall(answer.at_once)
                while answer.then and not self.over.wait(0.02 if answer.is_slow else 0):
                    safe.sendall(answer.then)

        return self.start(send, greets=False)

    def stop(self) -> None:
        """Stops all servers."""
        self.over.set()
        for server in self._started:
            server.shutdown()
            server.server_close()


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """Servers that are stopped at the end of the `with` block."""
    started = Servers()
    try:
        yield started
    finally:
        started.stop()


def signed_by_itself(path: Path, name: str = "IP:127.0.0.1") -> Path:
    """Writes a self-signed certificate for a name, with its key."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += [
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=mfulab test",
        "-addext",
        f"subjectAltName={name}",
    ]
    key = path.with_suffix(".key")
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(path)], check=True, capture_output=True
    )
    path.write_text(path.read_text() + key.read_text())
    return path

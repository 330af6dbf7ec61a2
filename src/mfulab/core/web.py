"""The one client of every request that leaves this process: bounded in time, bytes and redirects,
whatever the server does."""

import http.client
import socket
import ssl
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib import request
from urllib.error import HTTPError

from mfulab.core.said import Said, as_told

REDIRECTS = 3
MOST_BYTES = 1 << 23
REASON = 200  # letters of a server's own words that are repeated


class WebError(OSError):
    """A page that is not there, not in time, or too large; the message says why."""

    def __init__(self, said: Said) -> None:
        self.said = said
        super().__init__(str(said))


def fetched(
    address: str, deadline_s: float, most_bytes: int = MOST_BYTES, *, by_proxy: bool = True
) -> bytes:
    """The page at an address of http or https. `deadline_s` is for all of it, looking the host up
    and redirects included. Raises WebError."""
    visit = _Visit(address, deadline_s, most_bytes, by_proxy)
    thread = threading.Thread(target=visit.run, daemon=True)  # a look-up cannot be interrupted
    thread.start()
    thread.join(deadline_s)
    is_late = thread.is_alive()
    visit.end()
    if is_late:
        raise WebError(Said("page_late", {"seconds": deadline_s}))
    if visit.failure:
        raise WebError(_told(visit.failure)) from visit.failure
    if len(visit.page) > most_bytes:
        raise WebError(Said("page_too_large", {"mib": most_bytes >> 20}))
    return visit.page


def _told(error: Exception) -> Said:
    if isinstance(error, HTTPError):
        known = {status.value: status.phrase for status in HTTPStatus}
        words = f"HTTP status {error.code} {known.get(error.code, '')}".rstrip()
        if 300 <= error.code < 400:
            return Said("redirect_not_followed", {"status": words, "most": REDIRECTS})
        return as_told(words)
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Said("certificate_untrusted", {"why": reason.verify_message.rstrip(".")})
    return as_told(
        str(getattr(reason, "strerror", None) or reason)[:REASON] or type(error).__name__
    )


class _Visit:
    """One request with its redirects. Copies of its sockets are kept, to end it from outside."""

    def __init__(self, address: str, deadline_s: float, most_bytes: int, by_proxy: bool) -> None:
        self.page = b""
        self.failure: Exception | None = None
        self._address = address
        self._deadline_s = deadline_s
        self._until = time.monotonic() + deadline_s
        self._most_bytes = most_bytes
        self._sockets = list[socket.socket]()
        self._opener = request.OpenerDirector()  # without the handlers of files and FTP
        for handler in (
            request.ProxyHandler(None if by_proxy else {}),
            request.UnknownHandler(),
            _Http(self),
            _Https(self),
            request.HTTPDefaultErrorHandler(),
            _Redirects(),
            request.HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)

    def run(self) -> None:
        """Leaves the page or the failure."""
        try:
            with self._opener.open(self._address, timeout=self._deadline_s) as answer:
                self.page = answer.read(self._most_bytes + 1)
        except Exception as error:  # whatever a server provokes in the standard library
            self.failure = error

    def keep(self, opened: socket.socket) -> None:
        """Takes the copy of a socket that is shut at the end, at once if that has passed."""
        self._sockets.append(opened)
        if time.monotonic() > self._until:
            self.end()

    def end(self) -> None:
        """Shuts the connections; a thread that still reads from one ends by that."""
        for opened in self._sockets:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                opened.close()


class _Http(request.HTTPHandler):
    def __init__(self, visit: _Visit) -> None:
        super().__init__()
        self._visit = visit

    def http_open(self, req: request.Request) -> http.client.HTTPResponse:
        return self.do_open(_kept_by(self._visit, http.client.HTTPConnection), req)


class _Https(request.HTTPSHandler):
    def __init__(self, visit: _Visit) -> None:
        super().__init__()
        self._visit = visit

    def https_open(self, req: request.Request) -> http.client.HTTPResponse:
        return self.do_open(_kept_by(self._visit, http.client.HTTPSConnection), req)


def _kept_by(visit: _Visit, kind: type[http.client.HTTPConnection]) -> Any:
    """The class of connections of this kind whose sockets the visit keeps."""

    def opened(*place: Any) -> socket.socket:
        connection = socket.create_connection(*place)
        visit.keep(connection.dup())  # TLS takes the first one away
        return connection

    class Connection(kind):  # type: ignore[valid-type, misc]
        def connect(self) -> None:
            self._create_connection = opened
            super().connect()

    return Connection


class _Redirects(request.HTTPRedirectHandler):
    """Follows few redirects, to http and https alone, and does not read their bodies."""

    max_redirections = REDIRECTS
    max_repeats = REDIRECTS

    def http_error_302(
        self, req: request.Request, fp: Any, code: int, msg: str, headers: Any
    ) -> Any:
        fp.close()  # a body may have no end
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

"""Fetches pages over HTTP, with bounds on time, bytes and redirects that no server can break."""

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
REASON = 200  # characters of a server's message that are shown


class WebError(OSError):
    """A page that is absent, too slow or too large; the message says why."""

    def __init__(self, said: Said) -> None:
        self.said = said
        super().__init__(str(said))


def fetched(
    address: str, deadline_s: float, most_bytes: int = MOST_BYTES, *, by_proxy: bool = True
) -> bytes:
    """Returns the page at an http or https address. `deadline_s` bounds the whole request,
    including DNS lookup and redirects. Raises WebError."""
    visit = _Visit(address, deadline_s, most_bytes, by_proxy)
    thread = threading.Thread(target=visit.run, daemon=True)  # a DNS lookup cannot be interrupted
    thread.start()
    thread.join(deadline_s)
    is_late = thread.is_alive()
    visit.end()
    if is_late:
        raise WebError(Said("page_late", seconds=deadline_s))
    if visit.failure:
        raise WebError(_reason(visit.failure)) from visit.failure
    if len(visit.page) > most_bytes:
        raise WebError(Said("page_too_large", mib=most_bytes >> 20))
    return visit.page


def _reason(error: Exception) -> Said:
    if isinstance(error, HTTPError):
        phrases = {status.value: status.phrase for status in HTTPStatus}
        status = f"HTTP status {error.code} {phrases.get(error.code, '')}".rstrip()
        if 300 <= error.code < 400:
            return Said("redirect_not_followed", status=status, most=REDIRECTS)
        return as_told(status)
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Said("certificate_untrusted", why=reason.verify_message.rstrip("."))
    message = str(getattr(reason, "strerror", None) or reason)[:REASON]
    return as_told(message or type(error).__name__)


class _Visit:
    """One request with its redirects. Keeps copies of its sockets, so that another thread can end
    it."""

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
            request.HTTPDefaultErrorHandler(),
            _Redirects(),
            request.HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)

    def run(self) -> None:
        """Sets `page`, or `failure` if an error occurred."""
        try:
            with self._opener.open(self._address, timeout=self._deadline_s) as answer:
                self.page = answer.read(self._most_bytes + 1)
        except Exception as error:  # whatever a server provokes in the standard library
            self.failure = error

    def keep(self, opened: socket.socket) -> None:
        """Registers a copy of a socket for `end`; closes it at once if the deadline has passed."""
        self._sockets.append(opened)
        if time.monotonic() > self._until:
            self.end()

    def end(self) -> None:
        """Shuts the connections, which also ends a thread that is reading from one."""
        for opened in self._sockets:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                opened.close()


class _Http(request.AbstractHTTPHandler):
    """Opens http and https by connections whose sockets the visit knows."""

    http_request = https_request = request.AbstractHTTPHandler.do_request_

    def __init__(self, visit: _Visit) -> None:
        super().__init__()
        self._visit = visit

    def http_open(self, req: request.Request) -> http.client.HTTPResponse:
        return self.do_open(_kept_by(self._visit, http.client.HTTPConnection), req)

    def https_open(self, req: request.Request) -> http.client.HTTPResponse:
        return self.do_open(_kept_by(self._visit, http.client.HTTPSConnection), req)


def _kept_by(visit: _Visit, kind: type[http.client.HTTPConnection]) -> Any:
    """A class of connections of this kind that registers each socket it opens with the visit."""

    def opened(*arguments: Any) -> socket.socket:
        connection = socket.create_connection(*arguments)
        visit.keep(connection.dup())  # TLS detaches the original
        return connection

    class Connection(kind):  # type: ignore[valid-type, misc]
        def connect(self) -> None:
            self._create_connection = opened
            super().connect()

    return Connection


class _Redirects(request.HTTPRedirectHandler):
    """Follows at most `REDIRECTS` redirects, to http and https alone, without reading their
    bodies."""

    max_redirections = REDIRECTS
    max_repeats = REDIRECTS

    def http_error_302(
        self, req: request.Request, fp: Any, code: int, msg: str, headers: Any
    ) -> Any:
        fp.close()  # a body may have no end
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

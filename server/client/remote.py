"""The requests of commands to a running server. Unlike `urllib`, they use no proxy and follow no redirect."""

import http.client
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from numaserve.server.client.tls import advice, tls_of
from numaserve.workers.interface.errors import OperatorError

_TIMEOUT_S = 300.0  # enough for a prompt of a whole context
_DATA = b"data: "

_T = TypeVar("_T")


class RemoteServer:
    """A client of a running numaserve. Raises `OperatorError` for an invalid URL, and for missing or invalid answers.

    With `uds` the client connects to that Unix socket instead of the host of `url`. `ca_file` is passed to `tls_of`.
    """

    def __init__(self, url: str, api_key: str | None, uds: Path | None = None, *, ca_file: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OperatorError(f"{url} is not a valid URL: use a URL like http://127.0.0.1:8000")
        self.url = url
        self.uds = uds
        self._tls = tls_of(url, ca_file)
        self._netloc = parts.netloc
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def get(self, path: str, kind: type[_T]) -> _T:
        """Return the answer to GET `path`."""
        with self.request("GET", path) as response:
            return self.decoded(response, kind)

    def events(self, path: str, body: object) -> Generator[bytes]:
        """Yield the payloads of a streamed POST, until the last one. Closing the iterator aborts the request."""
        with self.request("POST", path, body) as response:
            self.check(response)
            while line := response.readline():
                if line.startswith(b'data: {"error"'):
                    raise OperatorError(f"{self.url} could not complete a request: {_message(line[len(_DATA) :])}")
                if line.startswith(b"data: {"):
                    yield line[len(_DATA) :]

    @contextmanager
    def request(self, method: str, path: str, body: object = None) -> Iterator[http.client.HTTPResponse]:
        """Yield an answer of any status; read it inside the context."""
        data = None if body is None else msgspec.json.encode(body)
        try:
            connection = self._connection()
        except http.client.InvalidURL as error:
            raise OperatorError(f"{self.url}: {error}") from None
        try:
            connection.request(method, self._path + path, data, self._headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise OperatorError(f"{self.url} does not answer ({reason}){advice(error)}") from None
        finally:
            connection.close()

    def check(self, response: http.client.HTTPResponse) -> None:
        """Raise `OperatorError` with the server's own message for an error answer."""
        if response.status == 200:
            return
        hint = "; name a file with an API key with --api-key-file" if response.status == 401 else ""
        raise OperatorError(f"{self.url} answered {response.status}: {_message(response.read())}{hint}")

    def decoded(self, response: http.client.HTTPResponse, kind: type[_T]) -> _T:
        """Return the decoded content of a JSON answer."""
        self.check(response)
        try:
            return msgspec.json.decode(response.read(), type=kind)
        except msgspec.MsgspecError as error:
            raise OperatorError(f"{self.url} is not a numaserve server of this version: {error}") from None

    def _connection(self) -> http.client.HTTPConnection:
        if self.uds is not None:
            return _UnixConnection(self.uds)
        if self._tls is not None:
            return http.client.HTTPSConnection(self._netloc, timeout=_TIMEOUT_S, context=self._tls)
        return http.client.HTTPConnection(self._netloc, timeout=_TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._socket_path))


def _message(body: bytes) -> str:
    """Return the server's own error message, if the body has one in numaserve's format."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "no explanation"

"""The few requests that a profile needs. Sent neither to a proxy nor after a redirect, as `urllib` would."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from numaserve.server.profiling.figures import RankFigures
from numaserve.workers.errors import OperatorError

_TIMEOUT_S = 300.0  # for a prompt of a whole context

_T = TypeVar("_T")


class ModelInfo(msgspec.Struct):
    """The fields of `GET /get_model_info` that a profile needs."""

    served_model_name: str
    vocab_size: int


class _Profiled(msgspec.Struct):
    profile: list[RankFigures]


class Remote:
    """A running numaserve. Raises `OperatorError` for a URL that is none, and whenever there is no such answer."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OperatorError(f"{url}: expected a URL like http://127.0.0.1:8000")
        self._url = url
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._netloc = parts.netloc
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model(self) -> ModelInfo:
        """The model that is served."""
        with self._request("GET", "/get_model_info") as response:
            return self._decoded(response, ModelInfo)

    def profile(self, *, ceilings: bool = False) -> list[RankFigures]:
        """Each rank's totals, with what its node allows if that can be measured, which is not while requests run."""
        with self._request("GET", f"/server_info?profile=1{'&ceilings=1' if ceilings else ''}") as response:
            if not ceilings or response.status != 409:
                return self._decoded(response, _Profiled).profile
        return self.profile()

    def complete(self, model: str, prompt: list[int], output_tokens: int) -> Iterator[None]:
        """Stream a greedy completion of exactly so many tokens; yields at every piece of it."""
        body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        with self._request("POST", "/v1/completions", body | {"stream": True}) as response:
            self._check(response)
            while line := response.readline():
                if line.startswith(b'data: {"error"'):
                    raise OperatorError(f"{self._url} could not complete a request: {_message(line[6:])}")
                if line.startswith(b"data: {"):
                    yield

    @contextmanager
    def _request(self, method: str, path: str, body: object = None) -> Iterator[http.client.HTTPResponse]:
        data = None if body is None else msgspec.json.encode(body)
        try:
            connection = self._connect(self._netloc, timeout=_TIMEOUT_S)
        except http.client.InvalidURL as error:
            raise OperatorError(f"{self._url}: {error}") from None
        try:
            connection.request(method, self._path + path, data, self._headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise OperatorError(f"{self._url} does not answer ({reason}): is the server running?") from None
        finally:
            connection.close()

    def _check(self, response: http.client.HTTPResponse) -> None:
        if response.status == 200:
            return
        hint = "; name a key with --api-key-file" if response.status == 401 else ""
        raise OperatorError(f"{self._url} answered {response.status}: {_message(response.read())}{hint}")

    def _decoded(self, response: http.client.HTTPResponse, kind: type[_T]) -> _T:
        self._check(response)
        try:
            return msgspec.json.decode(response.read(), type=kind)
        except msgspec.MsgspecError as error:
            raise OperatorError(f"{self._url} is no numaserve, or one of another version: {error}") from None


def _message(body: bytes) -> str:
    """The server's own words, if it is one that speaks this way."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "no explanation"

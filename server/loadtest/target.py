"""The server under load: one base URL, the only host that is contacted."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from numaserve.server.client.tls import advice, tls_of
from numaserve.server.loadtest.connections import Connections
from numaserve.server.loadtest.options import Traffic
from numaserve.server.loadtest.stream import error_text
from numaserve.workers.interface.errors import OperatorError

_VERSION = re.compile(r"/v\d+$")
_CONTROL_TIMEOUT = aiohttp.ClientTimeout(total=60)


class Target:
    """The endpoints of one server. Requests use no proxy and follow no redirect."""

    def __init__(self, base_url: str, session: aiohttp.ClientSession) -> None:
        self.base_url = base_url
        self.api = base_url if _VERSION.search(base_url) else f"{base_url}/v1"
        self.root = _VERSION.sub("", base_url)
        self.session = session

    async def model(self) -> str:
        """Return the name of the served model. Raises `OperatorError` unless the server has exactly one."""
        status, answer = await self.ask("GET", f"{self.api}/models")
        if status != 200:
            raise OperatorError(
                f"{self.api}/models returned status {status}: name the model with --model{_hint(status)}"
            )
        data = answer.get("data") if isinstance(answer, dict) else None
        names = [str(each["id"]) for each in data or [] if isinstance(each, dict) and "id" in each]
        if len(names) != 1:
            raise OperatorError(f"{self.base_url} serves {', '.join(names) or 'none'}: choose a model with --model")
        return names[0]

    async def count_tokens(self, model: str, text: str) -> int | None:
        """Return the number of tokens of `text`, with the special tokens that the server adds; None if not reported."""
        # The format of vLLM, SGLang and numaserve, and the format of llama.cpp.
        for body in ({"model": model, "prompt": text}, {"content": text, "add_special": True}):
            status, answer = await self.ask("POST", f"{self.root}/tokenize", body)
            if status == 200 and isinstance(answer, dict) and isinstance(tokens := answer.get("tokens"), list):
                return len(tokens)
        return None

    async def flush_cache(self) -> None:
        """Make the server drop cached prefixes. Raises `OperatorError` if it does not."""
        status, _ = await self.ask("POST", f"{self.root}/flush_cache")
        if status != 200:
            raise OperatorError(f"{self.root}/flush_cache returned status {status}: leave out --flush-cache")

    async def metrics(self) -> list[str]:
        """Return the lines of GET /metrics; an empty list if the server has no metrics."""
        url = f"{self.root}/metrics"
        try:
            async with self.session.get(url, timeout=_CONTROL_TIMEOUT, allow_redirects=False) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return []
        return content.decode(errors="replace").splitlines() if response.status == 200 else []

    async def ask(self, method: str, url: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the decoded JSON (None if invalid). Raises `OperatorError` if there is no answer."""
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self.session.request(
                method, url, data=data, timeout=_CONTROL_TIMEOUT, allow_redirects=False
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else error
            raise OperatorError(f"{url} does not answer ({describe(error)}){advice(reason)}") from None
        try:
            return response.status, msgspec.json.decode(content)
        except msgspec.DecodeError:
            return response.status, None


def _hint(status: int) -> str:
    return ", and a file with an API key with --api-key-file" if status in (401, 403) else ""


@asynccontextmanager
async def open_target(base_url: str, traffic: Traffic, uds: Path | None = None) -> AsyncIterator[Target]:
    """Yield a target with its connections, which go to the Unix socket `uds` instead of the URL's host if there is one.

    Raises `OperatorError` for an invalid HTTP URL or certificate authority.
    """
    base_url = base_url.rstrip("/")
    if not re.match(r"https?://[^/\s?#]+(/[^\s?#]*)?$", base_url):
        raise OperatorError(f"{base_url} is not a valid URL: use a URL like http://127.0.0.1:8000")
    headers = {"Content-Type": "application/json"}
    if traffic.api_key is not None:
        headers["Authorization"] = f"Bearer {traffic.api_key}"
    # One connection per request: the server may close a kept connection just when it is used again.
    connections = Connections()
    connector: aiohttp.BaseConnector
    if uds is None:
        tls = tls_of(base_url, traffic.ca_file) or True
        connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=tls, socket_factory=connections.open)
    else:
        connector = aiohttp.UnixConnector(str(uds), limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=traffic.timeout_s)
    try:
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=headers, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            yield Target(base_url, session)
    finally:
        await connections.close()


def describe(error: BaseException) -> str:
    """Return a short description of a connection error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def message_of(content: bytes) -> str:
    """Return the message in the body of an error answer."""
    try:
        return error_text(msgspec.json.decode(content))
    except msgspec.DecodeError:
        return error_text(content.decode(errors="replace"))

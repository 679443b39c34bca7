"""A client whose requests are answered whole, in one call into the thread of the application."""

from typing import Any

from starlette import testclient
from starlette.testclient import httpx  # the package that Starlette found

_ADDRESS = ("testclient", 50000)


class TestClient(testclient.TestClient):
    """Starlette's client, which makes one call into the thread of the application for a request.

    Starlette makes eight calls, and one more for each part of the answer: the two threads wait for each other longer
    than the application takes. Requests with `stream=True`, whose answers are read while they come, are Starlette's.
    """

    __test__ = False

    def __init__(self, app: Any, *, raise_server_exceptions: bool = True, **more: Any) -> None:
        super().__init__(app, raise_server_exceptions=raise_server_exceptions, client=_ADDRESS, **more)
        transport = httpx.ASGITransport(app, raise_app_exceptions=raise_server_exceptions, client=_ADDRESS)
        self._whole = httpx.AsyncClient(transport=transport, follow_redirects=self.follow_redirects, trust_env=False)

    def send(self, request: httpx.Request, *, stream: bool = False, **more: Any) -> httpx.Response:
        """See `httpx.Client`."""
        if stream or not isinstance(request.stream, httpx.AsyncByteStream):
            return super().send(request, stream=stream, **more)

        async def answer() -> httpx.Response:
            return await self._whole.send(request, **more)

        with self._portal_factory() as portal:
            return portal.call(answer)

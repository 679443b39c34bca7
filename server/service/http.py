"""The HTTP server of one model. Imported while the workers load, because FastAPI takes half a second."""

import logging
import socket
import ssl
from collections.abc import Sequence

from numaserve.server.app.application import ApiContext, create_app
from numaserve.server.connection.app_server import AppServer
from numaserve.server.connection.bounds import ConnectionLimits

_log = logging.getLogger(__name__)


class HttpServer(AppServer):
    """The HTTP server of one model: the API over `context`."""

    def __init__(
        self,
        context: ApiContext,
        listeners: Sequence[socket.socket],
        limits: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        at_once: bool = True,
    ) -> None:
        super().__init__(create_app(context), listeners, limits, tls, at_once=at_once)
        self._context = context

    def prepare(self) -> None:
        """Load what requests need later. Call it in a thread while the workers load."""
        try:
            self._context.prepare()
        except Exception as error:
            _log.warning("this server cannot serve requests with constraints: %s", error)

    def stop(self) -> None:
        """Stop the server; requests that wait to be decoded or tokenized are refused."""
        self._context.close()
        super().stop()

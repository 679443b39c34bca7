"""The listeners that the configuration asks for."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.server.config.serve import ServeConfig
from numaserve.server.connection.activation import activated_listeners
from numaserve.server.connection.listen import Listener, bind_listener
from numaserve.server.connection.tls import find_certificate
from numaserve.server.connection.unix_socket import bind_unix_listener
from numaserve.server.service.checks.instruction_set import InstructionSet
from numaserve.workers.interface.errors import OperatorError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GatewayLink:
    """The link of a model process to its gateway, which alone connects to `listener`."""

    name: str  # of the model
    listener: Listener
    lifeline_fd: int  # inherited by the workers: the gateway waits until every process has closed it
    kernels: InstructionSet | None = None  # that the gateway has found out


def bind_listeners(config: ServeConfig) -> list[Listener]:
    """Return the listeners that systemd passes, else the one of `uds`, or of `host` and `port`.

    Raises `OperatorError`.
    """
    certificate = find_certificate(config.ssl_certfile, config.ssl_keyfile)
    given = activated_listeners(os.environ, certificate)
    if given and config.uds is not None:
        raise OperatorError("systemd passed sockets to listen on, and --uds names another socket: leave --uds out")
    if given:
        _log.info(
            "listening on the sockets from systemd instead of --host and --port: %s",
            ", ".join(each.place for each in given),
        )
        return given
    if config.uds is not None:
        return [bind_unix_listener(config.uds, certificate)]
    return [bind_listener(config.host, config.port, certificate)]


def warn_of_reach(listeners: Sequence[Listener]) -> None:
    """Log which listeners other machines can reach. Call it if no API key is required."""
    for listener in listeners:
        if not listener.is_local:
            _log.warning(
                "every machine that can reach %s can use the server without a key: set API keys (--api-key-file, "
                "NUMASERVE_API_KEY) or listen on 127.0.0.1",
                listener.place,
            )

"""The handler of SIGHUP, which reads keys and certificate again, unless the terminal was closed."""

import logging
import sys
from collections.abc import Callable

from numaserve.server.connection.tls import Certificate
from numaserve.server.service.process.key_sources import KeySources
from numaserve.workers.interface.errors import OperatorError

_log = logging.getLogger(__name__)


class Reloader:
    """The reload of API keys and certificate; `on_hang_up` is called instead if the terminal was closed.

    Keys or a certificate that cannot be read stay as they were, and the error is logged.
    """

    def __init__(
        self, key_sources: KeySources, certificate: Certificate | None, on_hang_up: Callable[[], None]
    ) -> None:
        self._parts: dict[str, Callable[[], None]] = {"API keys": key_sources.reload}
        if certificate is not None:
            self._parts["certificate"] = certificate.reload
        self._on_hang_up = on_hang_up
        self._had_terminal = sys.stderr.isatty()

    def on_signal(self) -> None:
        """Act on SIGHUP."""
        if self._had_terminal and not sys.stderr.isatty():  # isatty is false for a closed terminal
            self._on_hang_up()
            return
        for name, reload in self._parts.items():
            try:
                reload()
            except OperatorError as error:
                _log.error("reloading the %s failed, keeping the previous ones: %s", name, error)
            else:
                _log.info("reloaded: %s", name)

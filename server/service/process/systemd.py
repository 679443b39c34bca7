"""The messages to the service manager. Without systemd every call does nothing."""

import asyncio
import os
from collections.abc import Callable

import sdnotify


class ServiceManager:
    """A client of systemd's notification protocol (sd_notify(3))."""

    def __init__(self) -> None:
        self._notifier = sdnotify.SystemdNotifier() if os.environ.get("NOTIFY_SOCKET") else None
        self._last_status = ""

    def status(self, text: str) -> None:
        """Send one line for ``systemctl status``."""
        if text != self._last_status:
            self._last_status = text
            self._send(f"STATUS={text}")

    def ready(self, text: str) -> None:
        """Report that the server is ready for requests."""
        self._send(f"READY=1\nSTATUS={text}")

    def stopping(self) -> None:
        """Report that the server is stopping."""
        self._send("STOPPING=1\nSTATUS=draining")

    def close(self) -> None:
        """Close the socket to the service manager."""
        if self._notifier is not None and self._notifier.socket is not None:
            self._notifier.socket.close()

    async def feed_watchdog(self, is_healthy: Callable[[], bool]) -> None:
        """Send watchdog messages while `is_healthy`, twice per watchdog interval, until cancelled."""
        interval = watchdog_seconds()
        while interval is not None:
            if is_healthy():
                self._send("WATCHDOG=1")
            await asyncio.sleep(interval / 2)

    def _send(self, state: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(state)


def watchdog_seconds() -> float | None:
    """Return systemd's watchdog interval in seconds; None without a watchdog."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6

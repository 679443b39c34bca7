"""The process of one model's server; its gateway starts it, and tells it on its standard input what to serve."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

EXIT_MISTAKE = 2  # as the command's: to start again without a change would not help
_GRACE_S = 30.0  # for a server whose gateway is gone


class ModelLaunch(msgspec.Struct):
    """What the gateway says. The descriptors are inherited: a Unix socket that listens, and the end of a pipe, or of
    a pair of sockets, of which the gateway has the other one."""

    name: str
    options: dict[str, Any]  # of its configuration
    cpus: list[int]
    listen_fd: int = -1
    lifeline_fd: int = -1


def main(worker_command: Sequence[str] | None = None) -> NoReturn:
    """Serve until told to stop, or until the gateway is gone. `worker_command` replaces that of the workers."""
    launch = msgspec.json.decode(sys.stdin.buffer.read(), type=ModelLaunch)
    # Before anything is imported that has a thread for each core; workers and other children inherit it.
    os.sched_setaffinity(0, launch.cpus)
    threading.Thread(target=_end_with_gateway, args=(launch.lifeline_fd,), daemon=True).start()
    from numaserve.server.config.serve import load_config  # noqa: PLC0415
    from numaserve.server.connection.unix_socket import unix_listener  # noqa: PLC0415
    from numaserve.server.service.bind import GatewayLink  # noqa: PLC0415
    from numaserve.server.service.start import run_service  # noqa: PLC0415
    from numaserve.server.supervisor.process import DEFAULT_COMMAND  # noqa: PLC0415
    from numaserve.workers.interface.errors import OperatorError  # noqa: PLC0415

    listener = unix_listener(socket.socket(fileno=launch.listen_fd), None)
    try:
        link = GatewayLink(launch.name, listener, launch.lifeline_fd)
        run_service(load_config(launch.options), worker_command or DEFAULT_COMMAND, link)
    except OperatorError as error:
        sys.stderr.write(f"numaserve: {launch.name}: {' '.join(str(error).split())}\n")
        sys.exit(EXIT_MISTAKE)


def _end_with_gateway(lifeline_fd: int) -> None:
    """End this process when nobody has the other end. In a thread, as loading keeps the event loop waiting."""
    os.read(lifeline_fd, 1)
    # The second one ends what still runs: its clients are gone.
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    threading.Event().wait(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

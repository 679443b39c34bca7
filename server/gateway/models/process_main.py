"""The main module of a model process, which the gateway starts and configures through standard input."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
from numaserve.server.service.checks.instruction_set import InstructionSet

EXIT_MISTAKE = 2  # as for the command: restarting without a change would not help
_GRACE_S = 30.0  # for a model process whose gateway has ended


class ModelLaunch(msgspec.Struct):
    """The message of the gateway to a model process.

    The descriptors are inherited: a listening Unix socket, and one end of a pipe or of a pair of sockets. The gateway
    holds the other end.
    """

    name: str
    options: dict[str, Any]  # of the model's configuration
    cpus: list[int]
    listen_fd: int = -1
    lifeline_fd: int = -1
    kernels: InstructionSet | None = None  # None: the model process finds it out


def main(worker_command: Sequence[str] | None = None) -> NoReturn:
    """Serve until a stop signal or the end of the gateway. `worker_command` replaces the command of the workers."""
    launch = msgspec.json.decode(sys.stdin.buffer.read(), type=ModelLaunch)
    # Before importing anything that starts one thread per core; workers and other children inherit the affinity.
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
        link = GatewayLink(launch.name, listener, launch.lifeline_fd, launch.kernels)
        run_service(load_config(launch.options), worker_command or DEFAULT_COMMAND, link)
    except OperatorError as error:
        sys.stderr.write(f"numaserve: {launch.name}: {' '.join(str(error).split())}\n")
        sys.exit(EXIT_MISTAKE)


def _end_with_gateway(lifeline_fd: int) -> None:
    """End this process when the other end of `lifeline_fd` closes. Runs in a thread: loading blocks the event loop."""
    os.read(lifeline_fd, 1)
    # The second signal ends running requests: their clients are gone.
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    threading.Event().wait(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

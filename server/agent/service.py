"""The process of an agent, from its keys to its end."""

import asyncio
import logging
import signal
import socket
from pathlib import Path

import uvloop
from numaserve.server.agent.agent import Agent
from numaserve.server.agent.hosted import HostOptions, listen_at
from numaserve.server.common.key_files import read_key_file
from numaserve.server.connection.descriptors import max_connections
from numaserve.server.service.process.systemd import ServiceManager
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.host_links import Address, KeyPair, check_curve

_log = logging.getLogger(__name__)


def run_agent(options: HostOptions, key_file: Path, front_ends: Path) -> None:
    """Run the agent until SIGTERM or SIGINT. Raises `OperatorError`."""
    check_curve()
    keys = read_key_file(key_file)
    max_connections()
    try:
        listener = listen_at(options.address)
    except OSError as error:
        raise OperatorError(
            f"cannot listen at {options.address}: {error.strerror}. Name an address of this host and a free port"
        ) from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(options, keys, front_ends, listener))


async def _run(options: HostOptions, keys: KeyPair, front_ends: Path, listener: socket.socket) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    place = Address(options.address.host, listener.getsockname()[1])
    agent = Agent(options, keys, front_ends, listener.detach())
    manager = ServiceManager()
    manager.ready(f"agent at {place}")
    print(f"the agent listens at {place} with the key {keys.public}", flush=True)
    try:
        await stop.wait()
    finally:
        manager.stopping()
        await agent.close()
        manager.close()

"""The publisher of KV events, as the options configure it."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from numaserve.server.config.serve import ServeConfig
from numaserve.server.connection.unix_socket import NOT_FOR_OTHERS, remove_dead_socket
from numaserve.server.dispatch.directory import MAX_SOCKET_PATH
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE

if TYPE_CHECKING:
    from numaserve.server.kv_events.feed import KVFeed

_TCP = re.compile(r"tcp://(?P<host>\*|[\w.-]+|\[[\da-fA-F:.%\w]+\]):(?P<port>\d{1,5})", re.ASCII)

_log = logging.getLogger(__name__)


def open_kv_feed(config: ServeConfig, model: str) -> KVFeed | None:
    """Return the publisher of the KV events of `model`; None, without any import, if KV events are off.

    Raises `OperatorError` for an unavailable address, and for one that other machines reach without
    `kv_events_anywhere`.
    """
    if config.kv_events is None:
        if config.kv_events_replay is not None:
            raise OperatorError(
                "--kv-events-replay needs --kv-events: set --kv-events too, or leave out --kv-events-replay"
            )
        return None
    from numaserve.server.kv_events.feed import KVFeed  # noqa: PLC0415
    from numaserve.server.kv_events.publisher import Publisher  # noqa: PLC0415

    topic = config.kv_events_topic or f"kv@{socket.gethostname()}@{model}"
    for endpoint in (config.kv_events, config.kv_events_replay):
        if endpoint is not None:
            _check(endpoint, anywhere=config.kv_events_anywhere)
    try:
        with _files_for_owner_and_group():
            publisher = Publisher(config.kv_events, config.kv_events_replay, topic, PAGE_SIZE)
    except OSError as error:
        raise OperatorError(
            f"cannot publish KV events at {config.kv_events}: {error.strerror or error}. Choose another address"
        ) from None
    _log.info("publishing KV events at %s with topic %s", ", replay at ".join(publisher.endpoints), topic)
    return KVFeed(KVEventLog(model), publisher)


def _check(endpoint: str, *, anywhere: bool) -> None:
    if endpoint.startswith("ipc://"):
        _check_path(Path(endpoint.removeprefix("ipc://")))
        return
    found = _TCP.fullmatch(endpoint)
    if found is None or int(found["port"]) > 65535:
        raise OperatorError(
            f"{endpoint[:80]!r} is not a valid endpoint for KV events: use ipc://PATH or tcp://ADDRESS:PORT"
        )
    if not anywhere and not _is_loopback(found["host"]):
        raise OperatorError(
            f"other machines can reach {endpoint}, and KV events contain prompts and outputs: use "
            "tcp://127.0.0.1:PORT or ipc://PATH, or set --kv-events-anywhere if the network is protected"
        )


def _check_path(path: Path) -> None:
    if not path.is_absolute() or len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise OperatorError(
            f"the path {path} for KV events is not valid: use an absolute path of at most {MAX_SOCKET_PATH} bytes"
        )
    if not path.parent.is_dir():
        raise OperatorError(f"the folder {path.parent} for the socket of KV events does not exist: create it")
    remove_dead_socket(
        path, "address of KV events"
    )  # ZeroMQ would replace any file, and the socket of a running server


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


@contextmanager
def _files_for_owner_and_group() -> Iterator[None]:
    before = os.umask(NOT_FOR_OTHERS)
    try:
        yield
    finally:
        os.umask(before)

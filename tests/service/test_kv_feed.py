import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.config.serve import load_config
from numaserve.server.service.kv_feed import open_kv_feed
from numaserve.workers.interface.errors import OperatorError


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ns") as short:  # tmp_path may be too long for a socket
        yield Path(short)


def opened(**options: object) -> None:
    feed = open_kv_feed(load_config({"model": "demo", **options}), "demo")
    assert feed is not None
    feed.close()


def test_without_the_option_there_is_nothing() -> None:
    assert open_kv_feed(load_config({"model": "demo"}), "demo") is None


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "tcp://127.8.8.8:0"])
def test_addresses_of_this_machine_alone_are_taken(address: str) -> None:
    opened(kv_events=address, kv_events_replay="tcp://127.0.0.1:0")


@pytest.mark.parametrize("address", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://example.org:5557"])
def test_an_address_that_other_machines_reach_is_refused_unless_they_may(address: str) -> None:
    with pytest.raises(OperatorError, match=r"other machines can reach .*--kv-events-anywhere"):
        opened(kv_events=address)
    with pytest.raises(OperatorError, match=r"other machines can reach .*--kv-events-anywhere"):
        opened(kv_events="tcp://127.0.0.1:0", kv_events_replay=address)


def test_other_machines_may_when_it_is_said() -> None:
    opened(kv_events="tcp://127.0.0.1:0", kv_events_replay="tcp://localhost:0", kv_events_anywhere=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_events": "http://127.0.0.1:1"}, "ipc://PATH or tcp://ADDRESS:PORT"),
        ({"kv_events": "tcp://127.0.0.1"}, "ipc://PATH or tcp://ADDRESS:PORT"),
        ({"kv_events": "tcp://127.0.0.1:99999"}, "ipc://PATH or tcp://ADDRESS:PORT"),
        ({"kv_events": "ipc://events"}, "use an absolute path"),
        ({"kv_events": "ipc:///" + "x" * 200}, "at most 107 bytes"),
        ({"kv_events": "ipc:///no/such/folder/events"}, "the folder /no/such/folder .* does not exist"),
        ({"kv_events_replay": "tcp://127.0.0.1:0"}, "needs --kv-events: set --kv-events too"),
    ],
)
def test_an_address_that_is_none_is_refused_in_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(OperatorError, match=message) as told:
        opened(**options)
    assert "\n" not in str(told.value)


def test_an_address_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OperatorError, match=r"Address already in use.*Choose another address"):
            opened(kv_events=f"tcp://127.0.0.1:{taken.getsockname()[1]}")


def test_a_file_that_is_no_socket_is_left_alone_and_a_dead_socket_replaced(folder: Path) -> None:
    path = folder / "events"
    path.write_text("a diary")
    with pytest.raises(OperatorError, match="is not a socket"):
        opened(kv_events=f"ipc://{path}")
    assert path.read_text() == "a diary"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    feed = open_kv_feed(load_config({"model": "demo", "kv_events": f"ipc://{path}"}), "demo")
    assert feed is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    feed.close()
    assert not path.exists()

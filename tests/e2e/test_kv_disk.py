"""Promise: prefixes on disk survive the server and its workers, with the same bits."""

import os
import random
import signal
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from numaserve.server.kv_disk.inspection import FolderContents, read_folder
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE

from tests.support.chat_model import HYBRID, LLAMA, SLIDING, write_model
from tests.support.living import await_ends
from tests.support.real_server import RealServer

_PAGES = 12
_PROMPT = random.Random(0).choices(range(3, 250), k=_PAGES * PAGE_SIZE + 9)
_FEED_FORWARD = 16_384  # so many that it takes longer to compute a page than to read it
_OPTIONS = ("--threads-per-worker", "1", "--kv-cache-gib", "0.125", "--kv-disk-gib", "0.05")


class Case(NamedTuple):
    family: str
    ranks: int
    cached: int  # pages of the prompt from which a sequence goes on
    anchors: int


CASES = [Case(LLAMA, 2, _PAGES, 0), Case(HYBRID, 1, _PAGES - 1, 1), Case(SLIDING, 2, _PAGES, 2)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_a_prefix_outlives_the_server_and_its_workers(tmp_path: Path, case: Case) -> None:
    model, folder = write_model(tmp_path, family=case.family, feed_forward=_FEED_FORWARD), tmp_path / "disk"
    with _server(model, folder, case) as server:
        cached, expected = _answer(server)
        assert cached == 0
        server.until(lambda: _is_written(folder, case))
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        assert not await_ends(server.orphans())
    with _server(model, folder, case) as server:
        _warm_up(server)
        assert _answer(server) == (case.cached * PAGE_SIZE, expected)
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.until(lambda: server.info()["restarts"] == 1 and server.is_ready())
        assert _answer(server)[1] == expected


def test_damaged_records_are_computed(tmp_path: Path) -> None:
    case, damaged = CASES[0], 5
    model, folder = write_model(tmp_path, family=case.family, feed_forward=_FEED_FORWARD), tmp_path / "disk"
    with _server(model, folder, case) as server:
        _, expected = _answer(server)
        server.until(lambda: _is_written(folder, case))
    contents = _contents(folder)
    assert contents is not None
    slot = next(entry.slot for entry in contents.entries["pages"] if entry.depth == damaged)
    file = folder / "rank-1.pages"
    data = bytearray(file.read_bytes())
    data[slot * contents.record_bytes("pages")[1] + 1000] ^= 1
    file.write_bytes(data)
    with _server(model, folder, case) as server:
        _warm_up(server)
        assert _answer(server) == ((damaged - 1) * PAGE_SIZE, expected)
        assert _answer(server) == (case.cached * PAGE_SIZE, expected)


def test_a_flush_and_a_removed_key_reach_the_disk(tmp_path: Path) -> None:
    model, folder, keys = write_model(tmp_path), tmp_path / "disk", tmp_path / "keys"
    keys.write_text("one cache-group=team\ntwo cache-group=other\n")
    keys.chmod(0o600)
    with RealServer(
        "--tp", "1", *_OPTIONS, "--kv-disk-path", str(folder), "--api-key-file", str(keys), model=str(model)
    ) as server:

        def ask(key: str, path: str, **body: Any) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            answer = httpx.post(server.url + path, json=body, headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text
            return answer.json()

        def pages() -> int:
            info = httpx.get(f"{server.url}/server_info", headers={"authorization": "Bearer one"}).json()["kv_disk"]
            assert (info["path"], info["state"]) == (str(folder.resolve()), "open")
            return int(info["pages"]["number"])

        server.until(lambda: "the disk tier has" in server.log.read_text())
        for key in ("one", "two"):
            ask(key, "/v1/completions", prompt=_PROMPT, max_tokens=1)
        server.until(lambda: pages() == 2 * _PAGES)
        keys.write_text("one cache-group=team\n")
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: pages() == _PAGES)
        server.until(lambda: _num_records(folder) == _PAGES)
        ask("one", "/flush_cache")
        assert pages() == 0
        server.until(lambda: not _is_written(folder, CASES[0]))


def _server(model: Path, folder: Path, case: Case) -> RealServer:
    return RealServer("--tp", str(case.ranks), *_OPTIONS, "--kv-disk-path", str(folder), model=str(model))


def _warm_up(server: RealServer) -> None:
    """Wait for the disk, and let the server see how long its steps take: for all that it knows, computing is quicker
    than reading."""
    server.until(lambda: "the disk tier has" in server.log.read_text())
    server.complete([5] * PAGE_SIZE, 8)


def _answer(server: RealServer) -> tuple[int, Any]:
    """The cached tokens of the prompt, and the tokens of an answer with their log-probabilities."""
    answer = server.complete(_PROMPT, 8, logprobs=3).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"]


def _is_written(folder: Path, case: Case) -> bool:
    contents = _contents(folder)
    if contents is None:
        return False
    return len(contents.entries["pages"]) >= _PAGES and len(contents.entries["anchors"]) >= case.anchors


def _num_records(folder: Path) -> int:
    """The records of rank 0 that are not erased."""
    contents = _contents(folder)
    assert contents is not None
    data, nbytes = (folder / "rank-0.pages").read_bytes(), contents.record_bytes("pages")[0]
    return sum(any(data[at : at + nbytes]) for at in range(0, len(data), nbytes))


def _contents(folder: Path) -> FolderContents | None:
    try:
        return read_folder(folder)
    except OperatorError:  # the server has not made it yet
        return None

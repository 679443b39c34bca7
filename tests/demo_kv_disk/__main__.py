"""``python -m tests.demo_kv_disk``: a long prompt, SIGKILL, a restart, and the same prompt again.

The prompt is computed once. The server is then killed, and a new server reads the prompt's pages from disk, past the
page cache. The bound is what that takes at least: the bytes at the disk's bandwidth, which plain direct reads measure
in the same run, and the last 32 tokens of the prompt, as they are computed when the rest is in memory. A refused
request of the same length comes first, with which the process starts that decodes long bodies. At last a byte of the
files is changed. `--shape hybrid` does the same with a model whose layers are mostly recurrent. The exit status is 1
where a bit of an answer differs, or where the damaged record is not noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
from numaserve.server.kv_disk.inspection import read_folder
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE

from tests.demo_kv_disk.model import SHAPES, write_model
from tests.support.living import await_ends
from tests.support.plain_file import PlainFile
from tests.support.real_server import RealServer, completion

FOLDER = Path("build/demo-kv-disk")
_SHORT = 32
_PASSES = 3
_VOCABULARY = range(3, 380)
_PATIENCE_S = 600.0
_CALL_BYTES = 1 << 20
_CHECKSUM_MISSES = "kv_disk_problems_total checksum"


class Reply(NamedTuple):
    """The answer to a prompt."""

    seconds: float  # to the first token
    cached: int  # tokens
    choices: object  # tokens and log-probabilities


def main() -> int:
    """Print the line of the demonstration, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--shape", choices=SHAPES, default="dense")
    asked = parser.parse_args()
    model = write_model(FOLDER / asked.shape, asked.shape)
    prompt = random.Random(0).choices(_VOCABULARY, k=asked.tokens)
    pages = (asked.tokens - 1) // PAGE_SIZE
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="disk-", dir=FOLDER) as made:
        folder = Path(made)
        with _server(model, folder) as server:
            _ask(server, prompt[:_SHORT])
            cold = _ask(server, prompt)
            server.until(lambda: _num_pages(folder) >= pages)
            _kill(server)
        depth, nbytes = _last_prefix(folder, pages)
        bandwidth = _bandwidth(folder / "rank-0.pages")
        with _server(model, folder) as server:
            _wait_for_disk(server)
            _ask(server, prompt[-_SHORT - 1 :][:_SHORT])
            _refuse(server, prompt)
            restored = _ask(server, prompt)
            in_memory = min(_ask(server, prompt).seconds for _ in range(3))
            _kill(server)
        bound = nbytes / bandwidth + in_memory
        equal = restored.choices == cold.choices
        print(
            f"cold {cold.seconds:.1f} s | restored {restored.seconds:.2f} s | bound {bound:.2f} s "
            f"({restored.seconds / bound:.2f} x) | bits {'equal' if equal else 'DIFFER'} | cached {restored.cached}",
            flush=True,
        )
        _damage(folder, depth=depth - 4)
        with _server(model, folder) as server:
            _wait_for_disk(server)
            _ask(server, prompt[-_SHORT - 5 :][:_SHORT])
            damaged = _ask(server, prompt)
            misses = round(server.metrics()[_CHECKSUM_MISSES])
        same = damaged.choices == cold.choices
        print(f"checksum miss {misses}, bits {'equal' if same else 'DIFFER'}, cached {damaged.cached}", flush=True)
    return 0 if equal and same and misses == 1 and restored.cached == depth * PAGE_SIZE else 1


def _server(model: Path, folder: Path) -> RealServer:
    options = ("--tp", "1", "--context-length", "20000", "--kv-cache-gib", "2", "--max-running-requests", "4")
    return RealServer(*options, "--kv-disk-path", str(folder), "--kv-disk-gib", "2", model=str(model))


def _wait_for_disk(server: RealServer) -> None:
    server.until(lambda: "pages are on disk" in server.log.read_text())


def _ask(server: RealServer, prompt: list[int]) -> Reply:
    body = completion(prompt, 8, logprobs=3, stream=True, stream_options={"include_usage": True})
    begin, first, choices, cached = time.perf_counter(), 0.0, [], 0
    authorities = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=body, timeout=_PATIENCE_S, verify=authorities
    ) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            first = first or time.perf_counter()
            event = json.loads(line.removeprefix("data: "))
            choices += event["choices"]
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Reply(first - begin, cached, choices)


def _refuse(server: RealServer, prompt: list[int]) -> None:
    """Send a prompt with a token that the model does not have."""
    assert server.complete([*prompt, 1 << 20], 1).status_code == 400


def _kill(server: RealServer) -> None:
    """Kill the server, and wait for the end of its workers."""
    server.worker_pids()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    await_ends(server.orphans(), _PATIENCE_S)


def _bandwidth(path: Path) -> float:
    """The bytes per second of plain calls that read a file: the best of some passes."""
    file, size = PlainFile(path), path.stat().st_size
    try:
        offsets = range(0, size - _CALL_BYTES + 1, _CALL_BYTES)
        return max(file.read(offsets, _CALL_BYTES) for _ in range(_PASSES))
    finally:
        file.close()


def _num_pages(folder: Path) -> int:
    try:
        return len(read_folder(folder).entries["pages"])
    except OperatorError:  # the server has not made it yet
        return 0


def _last_prefix(folder: Path, most: int) -> tuple[int, int]:
    """The pages of the longest prefix that can be read, at most `most`, and its bytes: with its anchor, where the model
    has anchors."""
    contents = read_folder(folder)
    (page_bytes,), (anchor_bytes,) = (contents.record_bytes(kind) for kind in ("pages", "anchors"))
    depths = (entry.depth for entry in contents.entries["anchors" if anchor_bytes else "pages"])
    depth = max(each for each in depths if each <= most)
    return depth, depth * page_bytes + anchor_bytes


def _damage(folder: Path, depth: int) -> None:
    """Change a byte of the page that ends a prefix of `depth` pages."""
    contents = read_folder(folder)
    slot = next(entry.slot for entry in contents.entries["pages"] if entry.depth == depth)
    offset = slot * contents.record_bytes("pages")[0] + 12_345
    fd = os.open(folder / "rank-0.pages", os.O_RDWR)
    try:
        os.pwrite(fd, bytes([os.pread(fd, 1, offset)[0] ^ 1]), offset)
        os.fsync(fd)
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())

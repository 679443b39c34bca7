"""Over real sockets: an answer that its client does not read takes little memory, and an end."""

import asyncio
import contextlib
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.server.app.application import ApiContext
from numaserve.server.connection.bounds import ConnectionLimits
from numaserve.server.generation.purpose import Embeds
from numaserve.server.generation.sparse import SparseOutput
from numaserve.server.scheduler.request import Pooling
from numaserve.workers.interface.vectors import SparseEntries
from raw_clients import Connect, Connection, exchange, listening

from tests.support.api_fakes import FakeEngine, FakeSequence, FakeStream, make_context

MIB = 1 << 20
DIMENSIONS, ENTRIES = 1024, 20_000
GET = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
INPUTS = {"/embed": 400, "/v1/embeddings": 400, "/embed_sparse": 50, "/tokenize": 1}


class ForgetfulEngine(FakeEngine):
    """Keeps no request, so that memory is the server's alone."""

    def admit(self, requests: Any) -> FakeStream:
        return FakeStream(self, requests)


@pytest.fixture(autouse=True)
def _vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse vector has an entry for each token of the vocabulary."""
    sparse = SparseEntries.of_vector(np.linspace(0.1, 7, ENTRIES, dtype=np.float32))
    dense = np.linspace(-1, 1, DIMENSIONS, dtype=np.float32).tobytes()

    def vector(sequence: FakeSequence) -> bytes:
        return sparse.encoded() if sequence.request.pooling == Pooling("sparse") else dense

    monkeypatch.setattr(FakeSequence, "_vector", vector)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def context_for(path: str, **limits: int) -> ApiContext:
    purpose = Embeds(sparse=SparseOutput(1)) if "sparse" in path else Embeds(DIMENSIONS)
    context = make_context(ForgetfulEngine(), max_body_bytes=2 * MIB, context_length=8192, purpose=purpose)
    return replace(context, limits=replace(context.limits, **limits))


def asked(path: str) -> bytes:
    field = {"/v1/embeddings": "input", "/tokenize": "prompt"}.get(path, "inputs")
    body = json.dumps({field: "x" * 250_000 if path == "/tokenize" else ["a"] * INPUTS[path]}).encode()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body


async def begun(connect: Connect, path: str) -> Connection:
    """A client that has read the beginning of its answer, and reads no more."""
    reader, writer = await connect()
    writer.write(asked(path))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


async def rest(connection: Connection) -> Any:
    """The body of an answer in chunks."""
    reader, body = connection[0], bytearray()
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    return json.loads(body)


def open_files(folder: Path) -> int:
    found = 0
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # that of the list
            found += folder in descriptor.readlink().parents
    return found


@pytest.fixture
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("path", INPUTS)
async def test_an_answer_that_is_not_read_holds_at_most_a_mebibyte(path: str, files: Path) -> None:
    clients = 6
    async with listening(ConnectionLimits(), context_for(path), buffer_bytes=4096) as connect:
        (await begun(connect, path))[1].transport.abort()
        while open_files(files):
            await asyncio.sleep(0.01)
        before = tracemalloc.get_traced_memory()[0]
        held = [await begun(connect, path) for _ in range(clients)]
        await asyncio.sleep(0.1)
        assert tracemalloc.get_traced_memory()[0] - before < clients * MIB
        assert open_files(files) == clients
        assert list(files.iterdir()) == []
        for _, writer in held:
            writer.transport.abort()
        while open_files(files):
            await asyncio.sleep(0.01)


async def test_a_client_that_reads_late_gets_all_of_its_answer(files: Path) -> None:
    async with listening(ConnectionLimits(), context_for("/embed"), buffer_bytes=4096) as connect:
        slow = await begun(connect, "/embed")
        found = await rest(slow)
        assert (len(found), len(found[0]), found[0]) == (INPUTS["/embed"], DIMENSIONS, found[-1])
        assert (await exchange(slow, GET))[0] == 200
        while open_files(files):
            await asyncio.sleep(0.01)


async def test_an_answer_that_nobody_reads_gives_its_space_back_in_the_end(files: Path) -> None:
    context, limits = context_for("/embed", max_bytes_unread=2 * MIB), ConnectionLimits(write_seconds=0.2)
    async with listening(limits, context, buffer_bytes=4096) as connect:
        await begun(connect, "/embed")
        assert open_files(files)
        refused = await exchange(await connect(), asked("/embed"))
        assert refused == (
            429,
            {
                "error": "The server's space for unread answers is full (limit 2097152 bytes). Retry after 1 s.",
                "error_type": "Overloaded",
            },
        )
        while open_files(files):
            await asyncio.sleep(0.01)
        await begun(connect, "/embed")


async def test_without_a_folder_for_files_an_answer_stays_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing too"))
    async with listening(ConnectionLimits(), context_for("/embed"), buffer_bytes=4096) as connect:
        assert len(await rest(await begun(connect, "/embed"))) == INPUTS["/embed"]
    assert [record.getMessage().split(":")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "no file for an unread answer, which stays in memory"
    ]

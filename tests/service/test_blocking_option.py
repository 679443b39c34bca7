"""Block sizes of matrix products in a file: written by a sweep, read for the same machine and kernels, the same on all
ranks."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.server.service.checks import blocking as checks
from numaserve.server.service.checks.blocking import blocking_for_ranks
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import decode_to_worker, encode
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.doctor.host import Processor, read_processor
from numaserve.workers.planning.found_blocking import FoundBlocking, Swept

from tests.support.configured import configured
from tests.support.machines import OPTIONS, machine

HERE = Processor("Xeon", "GenuineIntel", 6, 143, 8, "0x2b000643")
SIZES = {"slab_tiles": 32, "streamed_bytes": 1 << 40}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checks, "read_processor", lambda: HERE)
    monkeypatch.setattr(checks, "kernels_digest", lambda: "d1")
    path = tmp_path / "blocks.yaml"
    FoundBlocking(machine=Swept.on(HERE, "amx", "d1"), blocking=SIZES).write(path)
    return path


def test_a_file_is_used_on_the_machine_and_with_the_kernels_that_it_was_written_with(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert blocking_for_ranks(file, "amx") == SIZES
    assert caplog.messages == [f"using the block sizes of {file}: slab_tiles 32, streamed_bytes 1099511627776"]
    assert blocking_for_ranks(None, "amx") == {}


@pytest.mark.parametrize(
    ("here", "isa", "digest", "difference"),
    [
        (replace(HERE, vendor="AuthenticAMD"), "amx", "d1", "vendor GenuineIntel instead of AuthenticAMD"),
        (replace(HERE, family=25), "amx", "d1", "family 6 instead of 25"),
        (replace(HERE, model=207), "amx", "d1", "model 143 instead of 207"),
        (replace(HERE, stepping=2), "amx", "d1", "stepping 8 instead of 2"),
        (replace(HERE, microcode="0x1"), "amx", "d1", "microcode 0x2b000643 instead of 0x1"),
        (HERE, "avx512", "d1", "isa amx instead of avx512"),
        (HERE, "amx", "d2", "kernels d1 instead of d2"),
        (HERE, None, "d1", "the reference backend has no kernels"),
    ],
)
def test_a_file_for_another_machine_or_other_kernels_is_not_used_and_the_log_says_why(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    here: Processor,
    isa: str | None,
    digest: str,
    difference: str,
) -> None:
    monkeypatch.setattr(checks, "read_processor", lambda: here)
    monkeypatch.setattr(checks, "kernels_digest", lambda: digest)
    assert blocking_for_ranks(file, isa) == {}
    (message,) = caplog.messages
    assert message.startswith(f"not using the block sizes of {file}, because ") and difference in message


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("- [", "is not a YAML file"),
        ("blocking: {slab_tiles: 8}", "machine: Field required"),
        ("blocking: {slab_tiles: eight}", "machine: Field required"),
        ("", "should be a valid dictionary"),
    ],
)
def test_a_file_that_no_sweep_has_written_is_refused(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "blocks.yaml"
    path.write_text(text)
    with pytest.raises(OperatorError, match=error):
        blocking_for_ranks(path, "amx")
    with pytest.raises(OperatorError, match="cannot"):
        blocking_for_ranks(tmp_path / "none.yaml", "amx")


def test_all_ranks_get_the_same_sizes_in_their_launch() -> None:
    deployment = make_deployment(replace(OPTIONS, tp=2, blocking=SIZES), configured(), machine(4))
    received = [decode_to_worker(encode(launch)) for launch in deployment.launches]
    assert [launch.blocking for launch in received] == [SIZES, SIZES]
    assert make_deployment(OPTIONS, configured(), machine(4)).launches[0].blocking == {}


def test_this_machine_has_a_processor_to_compare() -> None:
    assert read_processor().vendor

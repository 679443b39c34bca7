"""Block sizes of matrix products in a file: written by a sweep, read for the same machine and kernels, the same on all
ranks."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.server.service.checks import blocking as checks
from numaserve.server.service.checks.blocking import blocking_for_ranks
from numaserve.server.service.checks.instruction_set import InstructionSet
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import decode_to_worker, encode
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.doctor.host import Processor, read_processor
from numaserve.workers.planning.found_blocking import FoundBlocking, Swept

from tests.support.configured import configured
from tests.support.machines import OPTIONS, machine

KERNELS = InstructionSet("amx", "", "d1")
HERE = Processor("Xeon", "GenuineIntel", 6, 143, 8, "0x2b000643")
SIZES = {"slab_tiles": 32, "streamed_bytes": 1 << 40}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(checks, "read_processor", lambda: HERE)
    path = tmp_path / "blocks.yaml"
    FoundBlocking(machine=Swept.on(HERE, "amx", "d1"), blocking=SIZES).write(path)
    return path


def test_a_file_is_used_on_the_machine_and_with_the_kernels_that_it_was_written_with(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert blocking_for_ranks(file, KERNELS) == SIZES
    assert caplog.messages == [f"using the block sizes of {file}: slab_tiles 32, streamed_bytes 1099511627776"]
    assert blocking_for_ranks(None, KERNELS) == {}


@pytest.mark.parametrize(
    ("here", "kernels", "difference"),
    [
        (replace(HERE, vendor="AuthenticAMD"), KERNELS, "vendor GenuineIntel instead of AuthenticAMD"),
        (replace(HERE, family=25), KERNELS, "family 6 instead of 25"),
        (replace(HERE, model=207), KERNELS, "model 143 instead of 207"),
        (replace(HERE, stepping=2), KERNELS, "stepping 8 instead of 2"),
        (replace(HERE, microcode="0x1"), KERNELS, "microcode 0x2b000643 instead of 0x1"),
        (HERE, KERNELS._replace(name="avx512"), "isa amx instead of avx512"),
        (HERE, KERNELS._replace(digest="d2"), "kernels d1 instead of d2"),
        (HERE, None, "the reference backend has no kernels"),
    ],
)
def test_a_file_for_another_machine_or_other_kernels_is_not_used_and_the_log_says_why(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    here: Processor,
    kernels: InstructionSet | None,
    difference: str,
) -> None:
    monkeypatch.setattr(checks, "read_processor", lambda: here)
    assert blocking_for_ranks(file, kernels) == {}
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
        blocking_for_ranks(path, KERNELS)
    with pytest.raises(OperatorError, match="cannot"):
        blocking_for_ranks(tmp_path / "none.yaml", KERNELS)


def test_all_ranks_get_the_same_sizes_in_their_launch() -> None:
    deployment = make_deployment(replace(OPTIONS, tp=2, blocking=SIZES), configured(), machine(4))
    received = [decode_to_worker(encode(launch)) for launch in deployment.launches]
    assert [launch.blocking for launch in received] == [SIZES, SIZES]
    assert make_deployment(OPTIONS, configured(), machine(4)).launches[0].blocking == {}


def test_this_machine_has_a_processor_to_compare() -> None:
    assert read_processor().vendor

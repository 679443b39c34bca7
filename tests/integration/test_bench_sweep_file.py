"""`numaserve bench kernels --sweep --write`: its file is what `numaserve serve --blocking` takes on the same host."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from numaserve.kernels import Team
from numaserve.server.cli.main import main
from numaserve.server.service.checks.blocking import blocking_for_ranks
from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.workers.bench import kernels, sweep
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.programs import BF16
from numaserve.workers.bench.rows import Effort, Limits
from numaserve.workers.bench.sweep import Mlp
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.process.rank_program import _set_blocking

TINY = Mlp("tiny", 96, 64)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = Ceilings("any", 1, 1e9, {"bf16": 1e9})
    monkeypatch.setattr(Meter, "limits", lambda *_: Limits(ceilings, {}))
    monkeypatch.setattr(kernels, "enter_node", lambda _: (Team([-1]), SimpleNamespace(cpus=(0,))))
    quick = replace(kernels.QUICK, sweep=(TINY,), sweep_m=(3, 70), effort=Effort(seconds=0, least=1))
    monkeypatch.setattr(kernels, "QUICK", quick)


def exit_status(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "kernels", *arguments])
    return caught.value.code


def test_block_sizes_of_a_sweep_come_back_and_programs_take_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "blocks.yaml"
    assert exit_status("--sweep", "--quick", "--format", "bf16", "--write", str(file)) == 0
    assert f"block sizes written to {file}: " in capsys.readouterr().out
    sizes = blocking_for_ranks(file, instruction_set().name)
    program, _ = sweep._program(Team([-1]), TINY, BF16, 1)
    assert set(sizes) == set(program.blocking)
    _set_blocking(program, sizes)
    assert program.blocking == sizes
    with pytest.raises(OperatorError, match="--blocking: matrix blocking: expected a size for each of"):
        _set_blocking(program, {"slab_tiles": 8})


def test_only_a_sweep_writes_block_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("--write", str(tmp_path / "blocks.yaml")) == 2
    assert "add --sweep, or leave --write out" in capsys.readouterr().err
    assert exit_status("--sweep", "--write", str(tmp_path / "none" / "blocks.yaml")) == 2
    assert "the folder does not exist" in capsys.readouterr().err

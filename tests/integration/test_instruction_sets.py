"""A build with some of the instruction sets, and what it says of those that it lacks."""

import json
import logging
import subprocess
from pathlib import Path

import msgspec
import pytest
from numaserve.server.gateway.models.process_main import ModelLaunch
from numaserve.server.service.checks import instruction_set as checks
from numaserve.server.service.checks.backend import check_backend
from programs import program

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
#include <cstdio>
#include "kernels/cpu_features.h"
namespace numaserve { const KernelTable kPortableTable{}; }
int main(int, char** names) {
  std::printf("%s\\n", numaserve::unbuilt_isa().c_str());
  try {
    numaserve::table_by_name(names[1]);
  } catch (const std::exception& error) {
    std::printf("%s\\n", error.what());
  }
}
"""


def compiled_sets(folder: Path, *options: str) -> set[str]:
    """The sets that cmake compiles, and that the table of instruction sets has."""
    command = (program("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DNUMASERVE_PYTHON=OFF", *options)
    subprocess.run((*command, f"-DCMAKE_MAKE_PROGRAM={program('ninja')}"), check=True, capture_output=True, text=True)
    units = json.loads((folder / "compile_commands.json").read_text())
    sets = {Path(unit["file"]).stem for unit in units if Path(unit["file"]).parent.name == "isa"}
    (table,) = (unit["command"] for unit in units if unit["file"].endswith("/cpu_features.cc"))
    assert sets == {word.removeprefix("-DNUMASERVE_HAS_").lower() for word in table.split() if "NUMASERVE_HAS_" in word}
    return sets


def test_a_build_has_the_sets_that_it_is_for(tmp_path: Path) -> None:
    every = {"amx", "avx512", "portable"}
    assert compiled_sets(tmp_path / "wheel") == every
    assert compiled_sets(tmp_path / "tests", "-DNUMASERVE_KERNEL_TESTS=OFF", "-DNUMASERVE_NATIVE_TESTS=ON") == {
        *every,
        "amx_emulated",
    }
    own = compiled_sets(tmp_path / "own", "-DNUMASERVE_INSTRUCTION_SETS=native")
    assert "portable" in own and len(own) <= 2


def test_a_set_that_is_not_built_is_said_to_be_missing(tmp_path: Path) -> None:
    source, probe = tmp_path / "probe.cc", tmp_path / "probe"
    source.write_text(PROBE)
    flags = ("-std=c++20", "-I", str(ROOT), "-DNUMASERVE_HAS_PORTABLE")
    sources = (str(source), str(ROOT / "kernels" / "cpu_features.cc"))
    subprocess.run((program("c++"), *flags, *sources, "-o", str(probe)), check=True)
    said = subprocess.run((str(probe), "amx"), check=True, capture_output=True, text=True).stdout.splitlines()
    flags, best = Path("/proc/cpuinfo").read_text(), (("amx", "amx_bf16"), ("avx512", "avx512_bf16"))
    assert said[0] == next((name for name, flag in best if flag in flags), "")
    assert "'amx' is not built; this installation has portable; unset NUMASERVE_ISA" in said[1]


def test_a_server_warns_of_a_better_set_that_is_not_built(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_COMMAND", ("printf", "portable\\navx512\\n"))
    with caplog.at_level(logging.WARNING):
        assert check_backend("native") == ("portable", "avx512")
    (record,) = caplog.records
    assert "avx512" in record.getMessage() and "`make install`" in record.getMessage()


def test_a_model_process_takes_the_instruction_set_that_its_gateway_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_COMMAND", ("false",))
    sent = msgspec.json.encode(ModelLaunch("m", {}, [0], kernels=checks.InstructionSet("avx512", "amx")))
    launch = msgspec.json.decode(sent, type=ModelLaunch)
    assert check_backend("native", launch.kernels) == checks.InstructionSet("avx512", "amx")
    assert check_backend("reference", launch.kernels) is None

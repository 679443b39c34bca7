"""Each header and each .inl of the native code includes what it needs; programs that no other test builds compile."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("kernels", "shm_comm")
    for path in (ROOT / folder).rglob("*.*")
    if path.suffix in (".h", ".inl") and "nanobind" not in path.read_text()  # which a wheel brings
]
# What `make asan`, `make tsan` and `make fuzz` build.
PROGRAMS = sorted(path for folder in ("kernels", "shm_comm") for path in (ROOT / "tests" / folder).glob("*.cc"))
PORTABLE = ["-march=x86-64-v3"]
WIDEST = ["-march=x86-64-v4", "-mavx512vnni", "-mavx512vbmi", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"]
OF_TILES = [  # as isa/amx.cc has them
    '-DNUMASERVE_TILE_HEADER="kernels/gemm/tiles/tile_amx.h"',
    '-DNUMASERVE_TILES_HEADER="kernels/gemm/tiles/tiles_hardware.h"',
]
ONLY_WIDEST = ("avx512", "amx", "tiles_")
ONLY_PORTABLE = ("avx2", "portable.h")
CASES = [
    pytest.param(path, flags, id=f"{path.name}-{name}")
    for path in sorted(SOURCES)
    for name, flags in (("portable", PORTABLE), ("widest", WIDEST))
    if not any(part in path.name for part in (ONLY_PORTABLE if name == "widest" else ONLY_WIDEST))
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "flags"), CASES)
def test_a_source_is_compiled_by_itself(path: Path, flags: list[str]) -> None:
    compile_only(path, flags + OF_TILES if path.stem.endswith("_amx") else flags)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_compiles(path: Path) -> None:
    compile_only(path, PORTABLE)


def compile_only(path: Path, flags: list[str]) -> None:
    language = ["-x", "c++", "-std=c++20", "-fsyntax-only", f"-I{ROOT}"]
    run = subprocess.run(
        [os.environ.get("CXX", "c++"), *language, *flags, str(path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr

"""Where the compiler's warnings are errors: in what developers build, and in nothing that users build."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from programs import program

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
PRESETS = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
DEFINE = re.compile(r"-D(NUMASERVE_\w+=\w+)")


def are_errors(folder: Path, *words: str) -> bool:
    """Whether cmake has the project's sources compiled with -Werror, when it is called with `words`."""
    command = (program("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *words, "-DNUMASERVE_PYTHON=OFF")
    subprocess.run((*command, f"-DCMAKE_MAKE_PROGRAM={program('ninja')}"), check=True, capture_output=True, text=True)
    units = json.loads((folder / "compile_commands.json").read_text())
    ours = [unit["command"].split() for unit in units if Path(unit["file"]).is_relative_to(ROOT)]
    assert ours and all("-Wall" in words for words in ours)
    (found,) = {"-Werror" in words for words in ours}
    return found


def told_by_make(target: str, venv: Path) -> list[str]:
    """The defines that a target of the Makefile gives to cmake, with an environment that is to be made."""
    command = ("make", "-B", "-n", "-C", str(ROOT), f"PYTHON={sys.executable}", f"VENV={venv}", target)
    planned = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [f"-D{define}" for define in DEFINE.findall(planned)]


def of_the_wheel() -> list[str]:
    """The defines that `pip install .`, of a checkout or an sdist, builds with."""
    return [f"-D{name}={value}" for name, value in SETTINGS["cmake"]["define"].items()]


def test_warnings_are_no_errors_by_default(tmp_path: Path) -> None:
    assert not are_errors(tmp_path)


def test_pip_install_takes_warnings_for_warnings_in_a_folder_of_a_development_build(tmp_path: Path) -> None:
    assert are_errors(tmp_path, "-DNUMASERVE_WERROR=ON")
    assert not are_errors(tmp_path, *of_the_wheel())


@pytest.mark.parametrize("target", ["install", "wheel", "container"])
def test_make_takes_warnings_for_warnings_where_users_build(target: str, tmp_path: Path) -> None:
    assert not [define for define in told_by_make(target, tmp_path) if "WERROR" in define]


def test_make_takes_warnings_for_errors_in_what_it_tests(tmp_path: Path) -> None:
    defines = [define for define in told_by_make("install-test", tmp_path / "venv") if "WERROR" in define]
    assert are_errors(tmp_path, *of_the_wheel(), *defines)


@pytest.mark.parametrize("preset", [preset["name"] for preset in PRESETS if not preset.get("hidden")])
def test_a_preset_takes_warnings_for_errors(preset: str, tmp_path: Path) -> None:
    assert are_errors(tmp_path, "--preset", preset)

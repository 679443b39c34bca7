"""What all commands have in common, and what a shell completes of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numaserve.server.cli.main import main, whole_command

MAIN = "from numaserve.server.cli.main import main; main()"


def paths_below(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from paths_below(below, (*path, name))


PATHS = list(paths_below(whole_command()))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return (caught.value.code, *capsys.readouterr())


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_a_command_has_the_short_option_for_help_and_one_for_the_version(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status, text, err = run(capsys, *path, "-h")
    assert (status, err) == (0, "")
    assert text.startswith(f"Usage: {' '.join(('numaserve', *path))} ")
    assert "-h, --help" in text and "--version" in text
    assert run(capsys, *path, "--help") == (0, text, "")
    assert run(capsys, *path, "--version") == run(capsys, "version"), "also where an argument would be missing"


CASES = {
    "a command": (("to",), ["topology", "top"]),
    "a command of a group": (("bench", "comp"), ["compare"]),
    "an option": (("top", "--ca"), ["--ca-file"]),
    "the shells": (("completion", "z"), ["zsh"]),
}


def asked_by(shell: str, words: tuple[str, ...]) -> dict[str, str]:
    """What a shell's script sets before it runs the command, to have the last of `words` completed."""
    line = " ".join(("numaserve", *words))
    own = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    return own[shell] | {"_NUMASERVE_COMPLETE": f"complete_{shell}"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("case", CASES)
def test_a_shell_is_answered_what_its_script_asks(
    shell: str, case: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, completed = CASES[case]
    status, script, _ = run(capsys, "completion", shell)
    assert status == 0
    for name, value in asked_by(shell, words).items():
        assert f"{name}=" in script
        monkeypatch.setenv(name, value)
    status, answer, err = run(capsys)
    assert (status, err) == (0, "")
    assert all(word in answer for word in completed) and "ring-stat" not in answer


def test_bash_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "numaserve"
    program.write_text(f"#!{sys.executable}\n{MAIN}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    _, script, _ = run(capsys, "completion", "bash")
    # As bash calls it: with the command that is completed.
    typed = 'COMP_WORDS=(numaserve to); COMP_CWORD=1; _numaserve_completion numaserve; printf "%s\\n" "${COMPREPLY[@]}"'
    bash = shutil.which("bash") or "bash"
    done = subprocess.run((bash, "-c", f"{script}\n{typed}"), check=True, capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["topology", "top"], "")


def test_zsh_finds_in_the_first_line_what_a_script_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "completion", "zsh")[1].startswith("#compdef numaserve\n")


def test_a_shell_that_is_not_known_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "completion", "tcsh")
    assert status == 2
    assert err.count("\n") == 1 and "'bash', 'zsh', 'fish'" in err

"""Whether KVM is taken, over a stand-in for qemu."""

import shlex
from pathlib import Path

import pytest

from tests.vm import acceleration as module
from tests.vm.acceleration import acceleration

BOOTED = "echo 'Linux version 6'; echo 'Kernel panic - not syncing: VFS: Unable to mount root fs'"
CASES = {
    "the kernel says that it has booted": (BOOTED, "kvm", "has booted"),
    "the processor is reset before that": ("echo 'Linux version 6'", "tcg", "ended with 0: it said nothing"),
    "qemu gives up after it": (f"{BOOTED}; exit 1", "tcg", "ended with 1"),
    "qemu cannot": ("echo 'one' >&2; echo 'failed to set MSR' >&2; exit 134", "tcg", "134: one; failed to set MSR"),
    "nothing comes": ("exec sleep 60", "tcg", "within 0.5 s"),
}


@pytest.mark.parametrize("name", CASES)
def test_kvm_is_taken_where_a_kernel_boots_with_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    does, kind, why = CASES[name]
    if "sleep" in does:
        monkeypatch.setattr(module, "_SECONDS", 0.5)
    qemu, device, told = tmp_path / "qemu", tmp_path / "kvm", tmp_path / "told"
    qemu.write_text(f'#!/bin/sh\necho "$@" > {shlex.quote(str(told))}\n{does}\n')
    qemu.chmod(0o755)
    device.touch()
    found = acceleration(Path("/vmlinuz"), device, str(qemu))
    assert found.kind == kind
    assert why in found.why
    assert "-accel kvm" in told.read_text() and "-kernel /vmlinuz" in told.read_text()


def test_processors_are_emulated_where_there_is_no_kvm(tmp_path: Path) -> None:
    found = acceleration(Path("/vmlinuz"), tmp_path / "kvm", str(tmp_path / "missing"))
    assert found == ("tcg", f"{tmp_path / 'kvm'} cannot be opened, No such file or directory")

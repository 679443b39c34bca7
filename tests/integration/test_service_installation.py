"""The installation of the service in a temporary folder, as a user without rights would run it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from deploy.installation import install as installing
from deploy.installation.__main__ import main
from deploy.installation.errors import InstallationError
from deploy.installation.versions import units_for

ROOT = Path(__file__).resolve().parents[2]
SYSTEMCTL = """\
#!/bin/sh
echo "$@" >> "$SYSTEMCTL_LOG"
if [ "$1" = show ]; then echo "$FRAGMENTS/$4"; fi
"""


class Host:
    """Places of an installation, and what runs its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix, self.etc, self.var = folder / "opt" / "numaserve", folder / "etc", folder / "var"
        self.locks = folder / "locks"
        self.locks.mkdir()
        for name in ("run.txt", "demo.txt"):
            (self.locks / name).touch()

    def run(self, command: str, *more: str, prefix: Path | None = None) -> int:
        return main([command, "--prefix", str(prefix or self.prefix), *self.places(), *more])

    def places(self) -> list[str]:
        return ["--etc", str(self.etc), "--var", str(self.var)]

    def install(self, version: str, prefix: Path | None = None) -> int:
        wheel = write_wheel(self.folder, version)
        return self.run("install", "--wheel", str(wheel), "--locks", str(self.locks), prefix=prefix)

    def served(self) -> str:
        """What the command that the unit starts prints."""
        unit = (self.etc / "systemd/system/numaserve.service").read_text()
        (command,) = [line.removeprefix("ExecStart=").split()[0] for line in unit.splitlines() if "ExecStart=" in line]
        return subprocess.run((command,), check=True, capture_output=True, text=True).stdout.strip()

    def tree(self) -> dict[str, bytes | str]:
        """Each path below the folder, but for wheels and locks, with its content."""
        paths = [path for path in self.folder.rglob("*") if not path.match("*.whl") and self.locks not in path.parents]
        return {str(path): path.read_bytes() if path.is_file() else str(path.resolve()) for path in paths}


def write_wheel(folder: Path, version: str) -> Path:
    """A wheel whose `numaserve` prints its version."""
    wheel = folder / f"numaserve-{version}-py3-none-any.whl"
    info = f"numaserve-{version}.dist-info"
    files = {
        "numaserve/__init__.py": f"def main() -> None:\n    print('numaserve {version}')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: numaserve\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nnumaserve = numaserve:main\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with ZipFile(wheel, "w") as archive:
        for name, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(name, text)
    return wheel


def quick_build(folder: Path, wheel: Path, locks: Path) -> None:
    """What pip would make of the wheel, without pip."""
    assert locks.is_dir() and not any(folder.iterdir())
    (folder / "bin").mkdir()
    (folder / "lib").mkdir()
    (folder / "lib64").symlink_to("lib")
    (folder / "lib" / "module.py").touch()
    command = folder / "bin" / "numaserve"
    command.write_text(f"#!/bin/sh\necho numaserve {wheel.name.split('-')[1]}\n")
    command.chmod(0o755)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    folder, programs = tmp_path / "host", tmp_path / "programs"
    for each in (folder, programs):
        each.mkdir()
    (programs / "systemctl").write_text(SYSTEMCTL)
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SYSTEMCTL_LOG", str(tmp_path / "systemctl"))
    monkeypatch.setenv("FRAGMENTS", str(folder / "etc/systemd/system"))
    monkeypatch.setattr(installing, "build", quick_build)
    umask = os.umask(0o022)
    yield Host(folder)
    os.umask(umask)


def asked_of_systemd(tmp_path: Path) -> list[str]:
    log = tmp_path / "systemctl"
    return [line for line in log.read_text().splitlines() if not line.startswith("show")] if log.exists() else []


@pytest.mark.parametrize("command", ["check", "install"])
def test_a_folder_of_others_is_refused_before_anything_is_written(
    command: str, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    (host.prefix / "bin").mkdir(parents=True)
    (host.prefix / "bin" / "python3").write_text("not ours")
    before = host.tree()
    assert (host.install("1.0") if command == "install" else host.run("check")) == 2
    assert host.tree() == before
    assert "contains bin, which does not belong to an installation of numaserve" in capsys.readouterr().err


def test_a_place_that_is_no_plain_absolute_path_is_refused(host: Host) -> None:
    for place in ("/", "opt/numaserve", "/opt/a b", "/opt/../usr", "/opt/$(id)"):
        assert host.install("1.0", prefix=Path(place)) == 2
    assert not host.prefix.exists()


def test_a_file_in_place_of_the_folder_is_refused(host: Host) -> None:
    host.prefix.parent.mkdir()
    host.prefix.write_text("not ours")
    assert host.install("1.0") == 2
    assert host.prefix.read_text() == "not ours"


def test_a_folder_without_a_manifest_is_not_uninstalled(host: Host) -> None:
    host.prefix.mkdir(parents=True)
    (host.prefix / "theirs").write_text("not ours")
    before = host.tree()
    assert host.run("uninstall", "--purge") == 2
    assert host.tree() == before


def test_a_manifest_that_others_may_write_is_not_followed(host: Host) -> None:
    assert host.install("1.0") == 0
    (host.prefix / "manifest.json").chmod(0o666)
    before = host.tree()
    assert host.run("uninstall", "--purge") == 2
    assert host.tree() == before


def test_what_was_there_before_survives_a_purge(host: Host) -> None:
    theirs = [host.etc / "numaserve" / "theirs.txt", host.etc / "systemd/system/other.service", host.var / "lib/theirs"]
    for file in theirs:
        file.parent.mkdir(parents=True)
        file.write_text("theirs")
    host.prefix.mkdir(parents=True)
    before = host.tree()
    assert host.install("1.0") == 0 and host.install("2.0") == 0
    assert host.tree().keys() > before.keys()
    assert host.run("uninstall", "--purge") == 0
    assert host.tree() == before


def test_configuration_and_models_of_others_survive_a_purge(host: Host) -> None:
    for file in (host.etc / "numaserve" / "numaserve.yaml", host.var / "lib/numaserve" / "weights"):
        file.parent.mkdir(parents=True)
        file.write_text("theirs")
    before = host.tree()
    assert host.install("1.0") == 0 and host.run("uninstall", "--purge") == 0
    assert host.tree() == before


def test_configuration_and_models_stay_until_a_purge(host: Host, tmp_path: Path) -> None:
    before = host.tree()
    assert host.install("1.0") == 0
    configuration = host.etc / "numaserve" / "numaserve.yaml"
    configuration.write_text("model: own\n")
    keys = host.etc / "numaserve" / "api-keys"
    keys.write_text("sk-1\n")
    model = host.var / "lib" / "private" / "numaserve" / "weights"
    model.parent.mkdir(parents=True)
    model.write_text("weights")
    (host.var / "lib" / "numaserve").symlink_to("private/numaserve")
    assert host.run("uninstall") == 0
    assert configuration.read_text() == "model: own\n" and keys.exists() and model.exists()
    assert [path.name for path in host.prefix.iterdir()] == ["manifest.json"]
    assert not (host.etc / "systemd/system/numaserve.service").exists()
    assert host.install("1.0") == 0, "the folder is still its own"
    assert configuration.read_text() == "model: own\n"
    assert host.run("uninstall", "--purge") == 0
    assert host.tree().keys() - before.keys() <= {str(host.var), str(host.var / "lib"), str(model.parents[1])}


def test_files_that_others_put_into_a_version_stay(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert host.install("1.0") == 0
    theirs = host.prefix / "current" / "lib" / "plugin.py"
    theirs.write_text("theirs")
    place = theirs.resolve()
    assert host.run("uninstall", "--purge") == 0
    assert place.read_text() == "theirs"
    assert {path for path in host.prefix.rglob("*") if path.is_file()} == {place, host.prefix / "manifest.json"}
    assert str(host.prefix / "versions") in capsys.readouterr().out


def test_a_rollback_serves_the_version_before_and_its_units(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.install("1.0") == 0
    unit = host.etc / "systemd/system/numaserve.service"
    before = unit.read_text()
    newer = {name: f"{text}# newer\n" for name, text in units_for(ROOT / "deploy", host.prefix, host.etc).items()}
    monkeypatch.setattr(installing, "units_for", lambda *_: newer)
    assert host.install("2.0") == 0
    assert host.served() == "numaserve 2.0" and unit.read_text().endswith("# newer\n")
    assert host.run("switch") == 0
    assert host.served() == "numaserve 1.0" and unit.read_text() == before
    assert host.run("switch") == 0
    assert host.served() == "numaserve 2.0", "the one before the present one"


def test_an_upgrade_touches_no_file_of_the_version_that_runs(host: Host) -> None:
    assert host.install("1.0") == 0
    folder = (host.prefix / "current").resolve()
    before = {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.rglob("*")}
    assert host.install("2.0") == 0
    assert {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.rglob("*")} == before


def test_current_always_names_a_version_while_it_is_switched(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.install("1.0") == 0
    seen = []
    replace = Path.replace

    def looking(path: Path, target: Path) -> Path:
        seen.append((host.prefix / "current" / "bin" / "numaserve").exists())
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", looking)
    assert host.install("2.0") == 0
    assert all(seen) and not (host.prefix / ".current.new").exists()


def test_the_version_that_is_served_is_not_removed_alone(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert host.install("1.0") == 0 and host.install("2.0") == 0
    capsys.readouterr()
    assert host.run("versions") == 0
    older, newer = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert (older.partition("-")[0], newer.partition("-")[0]) == ("1.0", "2.0")
    assert host.run("remove", "--version", newer) == 2
    assert host.run("remove", "--version", "3.0") == 2
    assert host.run("remove", "--version", older) == 0
    assert [path.name for path in (host.prefix / "versions").iterdir()] == [newer]
    assert host.run("switch") == 2, "there is none before it any more"
    assert host.served() == "numaserve 2.0"


def test_an_installation_that_was_interrupted_goes_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.install("1.0") == 0

    def breaks(folder: Path, *_: Path) -> None:
        (folder / "half").touch()
        raise InstallationError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(installing, "build", breaks)
        assert host.install("2.0") == 2
        assert host.served() == "numaserve 1.0"
    assert host.install("2.0") == 0
    assert host.served() == "numaserve 2.0"
    assert not (host.prefix / "current" / "half").exists()


def test_a_unit_that_was_edited_is_not_overwritten(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert host.install("1.0") == 0
    unit = host.etc / "systemd/system/numaserve.service"
    unit.write_text(unit.read_text() + "LoadCredential=api-keys\n")
    before = host.tree()
    assert host.install("2.0") == 2
    assert host.tree() == before
    assert "systemctl edit numaserve.service" in capsys.readouterr().err


def test_the_units_are_stopped_before_they_are_removed(host: Host, tmp_path: Path) -> None:
    assert host.install("1.0") == 0 and host.run("uninstall") == 0
    assert asked_of_systemd(tmp_path) == ["disable --now numaserve.socket numaserve.service", "daemon-reload"]


def test_units_of_another_installation_are_not_stopped(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAGMENTS", "/etc/systemd/system")
    assert host.install("1.0") == 0 and host.run("uninstall") == 0
    assert asked_of_systemd(tmp_path) == []


def test_units_name_the_places_of_the_installation_and_no_others(tmp_path: Path) -> None:
    prefix, etc = tmp_path / "opt/numaserve/etc/numaserve", tmp_path / "etc"
    for text in units_for(ROOT / "deploy", prefix, etc).values():
        assert "/opt/numaserve" not in text.replace(str(prefix), "")
        assert "/etc/numaserve" not in text.replace(str(prefix), "").replace(str(etc / "numaserve"), "")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    command = ("make", "--no-print-directory", "-C", str(ROOT), f"PYTHON={sys.executable}", *words)
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_make_refuses_a_foreign_folder_before_it_builds_a_wheel(host: Host) -> None:
    (host.prefix / "bin").mkdir(parents=True)
    before = host.tree()
    done = make("install-service", f"PREFIX={host.prefix}", f"ETC={host.etc}", f"VAR={host.var}")
    assert done.returncode != 0 and "which does not belong to an installation of numaserve" in done.stderr
    assert len(done.stdout.splitlines()) == 1 and "deploy.installation" in done.stdout, "nothing else was run"
    assert host.tree() == before


def test_make_installs_a_wheel_with_pip_and_removes_it(host: Host) -> None:
    wheel = write_wheel(host.folder, "1.0")
    places = (f"PREFIX={host.prefix}", f"ETC={host.etc}", f"VAR={host.var}", f"LOCKS={host.locks}")
    before = host.tree()
    installed = make("install-service", f"SERVICE_WHEEL={wheel}", *places)
    assert installed.returncode == 0, installed.stderr
    assert host.served() == "numaserve 1.0"
    removed = make("uninstall-service", "PURGE=1", *places)
    assert removed.returncode == 0, removed.stderr
    assert host.tree() == before


@pytest.mark.parametrize("target", ["clean", "wheel", "container", "audit"])
def test_make_removes_no_folder_that_it_is_given(target: str) -> None:
    variables = ("STAMPS", "WHEEL", "AUDIT", "CONTAINER", "PREFIX", "ETC", "VAR")
    planned = make("-n", target, *(f"{name}=/precious" for name in variables))
    removals = [line for line in planned.stdout.splitlines() if "rm -rf" in line or "--clear" in line]
    assert removals and not [line for line in removals if "/precious" in line]

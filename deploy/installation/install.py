"""The installation of a version, and the switch between versions."""

import os
import re
import shutil
from pathlib import Path

from deploy.installation.errors import InstallationError
from deploy.installation.manifest import Manifest, read_manifest, replace_file, write_manifest
from deploy.installation.versions import (
    UNITS,
    build,
    current,
    files_below,
    folder_of,
    keep_units,
    name_of,
    point_current,
    units_for,
    units_of,
)

DEPLOY = Path(__file__).resolve().parents[1]
# Paths that need no escaping in a unit, in a shell line of pip's scripts, and in systemd's syntax.
_PLACE = re.compile(r"(/[A-Za-z0-9._+-]+)+")
_CONFIGURATION = {"numaserve.yaml": 0o644, "numaserve.env": 0o600}
_STATE = ("lib/numaserve", "lib/private/numaserve", "cache/numaserve", "cache/private/numaserve")


def check(prefix: Path, etc: Path, var: Path) -> Manifest:
    """Return the manifest of the installation in `prefix`, or a new one; nothing is written.

    Raises:
        InstallationError: `prefix` holds files of no installation of numaserve, or a unit was edited.
    """
    for place in (prefix, etc, var):
        if not _PLACE.fullmatch(str(place)) or ".." in place.parts:
            raise InstallationError(f"{place} is not valid: use an absolute path of letters, digits and `._+-`")
    manifest = read_manifest(prefix)
    if manifest is None:
        _refuse_foreign(prefix)
        manifest = Manifest(str(etc), str(var))
    if (manifest.etc, manifest.var) != (str(etc), str(var)):
        raise InstallationError(
            f"{prefix} was installed with ETC={manifest.etc} VAR={manifest.var}, not with ETC={etc} VAR={var}: use "
            "the values of the installation, or another PREFIX"
        )
    _refuse_edited_units(prefix, manifest)
    return manifest


def install(prefix: Path, etc: Path, var: Path, wheel: Path, locks: Path) -> str:
    """Install `wheel` next to the installed versions and make it current. Returns the version's name.

    Raises:
        InstallationError: See `check` and `build`; after an error of `build`, the same command continues.
    """
    manifest = check(prefix, etc, var)
    version = name_of(wheel, locks)
    folder = folder_of(prefix, version)
    if manifest.versions.get(version) is None:
        _make_directory(prefix, manifest)
        if version in manifest.versions:
            shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted build
        elif folder.exists():
            raise InstallationError(f"{folder} exists, but the manifest of {prefix} does not list it: move it away")
        manifest.versions[version] = None
        write_manifest(prefix, manifest)
        folder.mkdir(parents=True)
        build(folder, wheel, locks)
        keep_units(folder, units_for(DEPLOY, prefix, etc))
        manifest.versions[version] = files_below(folder)
        write_manifest(prefix, manifest)
    _configure(prefix, manifest)
    switch(prefix, version)
    return version


def switch(prefix: Path, version: str | None) -> str:
    """Make `version`, or the previously current version, the current one. Returns its name.

    Raises:
        InstallationError: There is no such version, or a unit was edited.
    """
    manifest = read_manifest(prefix)
    chosen = version or (manifest.previous if manifest else None)
    if manifest is None or chosen is None or manifest.versions.get(chosen) is None:
        installed = [name for name, files in manifest.versions.items() if files is not None] if manifest else []
        names = ", ".join(installed) or "none"
        if chosen is None:
            raise InstallationError(f"{prefix} has no previous version to switch to. Installed versions: {names}")
        raise InstallationError(f"{prefix} has no version {chosen}. Installed versions: {names}")
    _refuse_edited_units(prefix, manifest)
    before = current(prefix)
    if before != chosen:
        manifest.previous = before
    folder = Path(manifest.etc) / "systemd" / "system"
    _make_directory(folder, manifest)
    manifest.units = [str(folder / name) for name in UNITS]
    write_manifest(prefix, manifest)
    for name, text in units_of(prefix, chosen).items():
        replace_file(folder / name, text)
    point_current(prefix, chosen)
    return chosen


def _refuse_foreign(prefix: Path) -> None:
    if prefix.exists() and not prefix.is_dir():
        raise InstallationError(f"PREFIX={prefix} is not a folder: use an empty folder or a new path")
    if prefix.is_dir() and (found := next(prefix.iterdir(), None)):
        raise InstallationError(
            f"PREFIX={prefix} contains {found.name}, which does not belong to an installation of numaserve: use an "
            "empty folder or a new path, such as /opt/numaserve"
        )


def _refuse_edited_units(prefix: Path, manifest: Manifest) -> None:
    """Raise `InstallationError` for edited units: an upgrade must not lose changes such as a credential of API keys."""
    complete = [version for version, files in manifest.versions.items() if files is not None]
    for name in UNITS:
        file = Path(manifest.etc) / "systemd" / "system" / name
        if file.exists() and file.read_text() not in [units_of(prefix, version)[name] for version in complete]:
            raise InstallationError(
                f"{file} differs from the unit that the installation in {prefix} wrote: move your changes to a "
                f"drop-in (`systemctl edit {name}`) and remove the file"
            )


def _configure(prefix: Path, manifest: Manifest) -> None:
    """Write missing configuration files, and record what a purge may remove."""
    folder = Path(manifest.etc) / "numaserve"
    drop_ins = [Path(manifest.etc) / "systemd" / "system" / f"{unit}.d" for unit in UNITS]
    state = [Path(manifest.var) / place for place in _STATE]
    absent = [path for path in (folder, *drop_ins, *state) if not os.path.lexists(path)]
    missing = [folder / name for name in _CONFIGURATION if not (folder / name).exists()]
    manifest.kept += [str(path) for path in (*absent, *missing) if str(path) not in manifest.kept]
    write_manifest(prefix, manifest)
    _make_directory(folder, manifest)
    write_manifest(prefix, manifest)
    for file in missing:
        shutil.copyfile(DEPLOY / file.name, file)
        file.chmod(_CONFIGURATION[file.name])


def _make_directory(path: Path, manifest: Manifest) -> None:
    """Create `path`, and record the created folders."""
    made = [str(each) for each in (path, *path.parents) if not each.exists()]
    manifest.directories += [each for each in made if each not in manifest.directories]
    path.mkdir(parents=True, exist_ok=True)

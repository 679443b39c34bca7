"""The removal of the files that a manifest lists, and of nothing else."""

import os
import shutil
import subprocess
from pathlib import Path

from deploy.installation.errors import InstallationError
from deploy.installation.manifest import NAME, Manifest, read_manifest, write_manifest
from deploy.installation.versions import CURRENT, current, folder_of


def uninstall(prefix: Path, *, purge: bool) -> list[Path]:
    """Stop the service and remove all versions and units. Returns the remaining paths of the installation.

    Configuration, models and caches stay, and the manifest with them, unless `purge`.

    Raises:
        InstallationError: There is no installation in `prefix`.
    """
    manifest = _read(prefix)
    _remove_units(manifest)
    (prefix / CURRENT).unlink(missing_ok=True)
    for version in list(manifest.versions):
        _remove_version(prefix, manifest, version)
    manifest.previous = None
    if purge:
        for place in map(Path, manifest.kept):
            _remove_tree(place)
        manifest.kept = []
    return _close(prefix, manifest)


def remove(prefix: Path, version: str) -> None:
    """Remove one version.

    Raises:
        InstallationError: The version is not installed, or it is current.
    """
    manifest = _read(prefix)
    if version not in manifest.versions:
        installed = ", ".join(manifest.versions) or "none"
        raise InstallationError(f"{prefix} has no version {version}. Installed versions: {installed}")
    if version == current(prefix):
        raise InstallationError(
            f"version {version} is current: switch to another version first (make rollback-service)"
        )
    _remove_version(prefix, manifest, version)
    if manifest.previous == version:
        manifest.previous = None
    write_manifest(prefix, manifest)


def _read(prefix: Path) -> Manifest:
    manifest = read_manifest(prefix)
    if manifest is None:
        raise InstallationError(
            f"{prefix / NAME} does not exist, so there is no installation to remove: use the PREFIX of the installation"
        )
    return manifest


def _remove_version(prefix: Path, manifest: Manifest, version: str) -> None:
    folder = folder_of(prefix, version)
    files = manifest.versions.pop(version)
    if files is None:
        _remove_tree(folder)  # made by an unfinished installation
        return
    for name in files:
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir():
        _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    """Remove empty folders in `folder`, and `folder` itself if empty."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            _remove_empty(each)
    if not any(folder.iterdir()):
        folder.rmdir()


def _remove_tree(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _close(prefix: Path, manifest: Manifest) -> list[Path]:
    """Remove the manifest if no longer needed, and empty folders. Returns the remaining paths."""
    write_manifest(prefix, manifest)
    if (versions := prefix / "versions").is_dir() and not any(versions.iterdir()):
        versions.rmdir()
    left = [each for each in map(Path, manifest.kept) if os.path.lexists(each)]
    left += [each for each in prefix.iterdir() if each.name != NAME]
    if not left:
        (prefix / NAME).unlink()
    for folder in sorted(map(Path, manifest.directories), key=lambda path: -len(path.parts)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return left


def _remove_units(manifest: Manifest) -> None:
    """Stop, disable and remove the units, except units that systemd loads from files of another installation."""
    units = [Path(unit) for unit in manifest.units]
    ours = [unit.name for unit in units if _systemctl("show", "-P", "FragmentPath", unit.name) == str(unit)]
    if ours:
        # The socket first, which would otherwise start the service again.
        _systemctl("disable", "--now", *sorted(ours, reverse=True))
    for unit in units:
        unit.unlink(missing_ok=True)
    if ours:
        _systemctl("daemon-reload")
    manifest.units = []


def _systemctl(*arguments: str) -> str:
    """Return the output of systemctl; an empty text without systemd, as in a container."""
    if (program := shutil.which("systemctl")) is None:
        return ""
    return subprocess.run((program, *arguments), check=False, stdout=subprocess.PIPE, text=True).stdout.strip()

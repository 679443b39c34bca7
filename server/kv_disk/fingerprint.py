"""The fingerprint of all that the bits of cached pages depend on. Files with another fingerprint are not read.

A fact too many costs a cold start, a fact too few a wrong answer.
"""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numaserve.workers.interface.capacity import PAGE_SIZE
from numaserve.workers.interface.numerics import NUMERICS_VERSION
from numaserve.workers.interface.protocol import Launch

_PROBES = 4096
_DIGEST_BYTES = 16
_NOT_BITS = ("mmproj", "max_loras")


def launch_facts(launch: Launch) -> dict[str, object]:
    """Return the facts of a rank's launch that are the same for all ranks.

    Sizes of caches and of steps are left out: no bit depends on them, and many follow from the memory that is free at
    the start. Paths are left out too: the content of the files counts. So is the number of adapters: the digest of an
    adapter is in those of its prefixes.
    """
    settings, draft = launch.settings, launch.draft
    return {
        "settings": [(name, getattr(settings, name)) for name in settings.__struct_fields__ if name not in _NOT_BITS],
        "draft": None if draft is None else draft.settings,
        "drafter": launch.drafter,
        "backend": launch.backend,
        "shares": launch.weights,
        "world size": launch.world_size,
    }


def fingerprint_of(
    contents: bytes, facts: Mapping[str, object], page_bytes: Sequence[int], anchor_bytes: Sequence[int]
) -> dict[str, bytes]:
    """Return the fingerprint, a digest of each fact by name, for a checkpoint with these `contents`, other `facts`, and
    records of these sizes on each rank."""
    fixed = {
        "numerics version": NUMERICS_VERSION,
        "page size": PAGE_SIZE,
        "checkpoint": contents,
        "machine": machine_facts(),
        "record sizes": (list(page_bytes), list(anchor_bytes)),
    }
    return {name: _digest(value) for name, value in {**facts, **fixed}.items()}


def changes_between(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[str]:
    """Return the names of the facts that differ, sorted; none: the fingerprints are equal."""
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def machine_facts() -> list[object]:
    """Return what the machine adds to the bits: versions and the processor's flags stand for the arguments of
    `table_values` that are not tried."""
    return [table_values(), np.__version__, platform.libc_ver(), platform.machine(), _flags()]


def table_values() -> bytes:
    """Return values of the functions by which tables of rotations are computed, at some arguments.

    The kernels call no function of libm. But numpy computes powers, sines and cosines by the processor's vectors or by
    libm, and both round differently: such tables differ in single bits between processors with and without AVX-512.
    """
    angles = np.arange(_PROBES, dtype=np.float64) * 37.25
    powers = 10000.0 ** -(angles / angles[-1])
    return b"".join(each.tobytes() for each in (np.cos(angles), np.sin(angles), powers, np.log1p(angles)))


def _flags() -> str:
    """Return a digest of the flags of the first processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()


def _digest(value: object) -> bytes:
    return hashlib.sha256(repr(value).encode()).digest()[:_DIGEST_BYTES]

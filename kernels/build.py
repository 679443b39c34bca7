"""The identity of the native kernels. ``python -m numaserve.kernels.build`` prints their digest."""

import hashlib
from pathlib import Path

from numaserve.kernels import _native


def build_digest() -> str:
    """Return a digest of the native module, which is the same for builds of the same sources and compiler."""
    return hashlib.blake2b(Path(str(_native.__file__)).read_bytes(), digest_size=16).hexdigest()


if __name__ == "__main__":
    print(build_digest())

"""The digest of a checkpoint's content, by which hosts find out whether they have the same one."""

import os
from pathlib import Path

from numaserve.server.kv_disk.contents import contents_digest
from numaserve.server.service.model.deployment import weights_cache_folder
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.weights.checkpoint_files import checkpoint_files


def checkpoint_digest(model: Path) -> bytes:
    """Return the digest of the model folder or .gguf file. The digests of files are remembered in the user's cache.

    All of the files are read the first time. Raises `OperatorError` for files that cannot be read.
    """
    folder = weights_cache_folder().parent / "digests"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = checkpoint_files(model)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise OperatorError(f"the files of {model} cannot be compared with other hosts: {error}") from error
    try:
        return contents_digest(files, fd)
    finally:
        os.close(fd)

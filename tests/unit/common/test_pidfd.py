import errno
import os
import subprocess
import sys

import pytest
from numaserve.server.common.pidfd import open_pidfd


def test_a_process_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> int:
        raise OSError(errno.EMFILE, "no descriptor is free")

    monkeypatch.setattr(os, "pidfd_open", fails)
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    with pytest.raises(OSError, match="no descriptor"):
        open_pidfd(process)
    assert process.returncode is not None

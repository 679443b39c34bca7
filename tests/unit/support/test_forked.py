import os
import select

import pytest

from tests.support.forked import Forked, prepare


def test_a_forked_process_that_has_ended_can_be_watched_until_its_status_is_read() -> None:
    """A child of `subprocess` can be watched, too. The gateway watches a model process that ends at once."""
    prepare(["tests.support.living"])
    process = Forked(["python", "-m", "tests.support.living"])
    ended = select.poll()
    ended.register(process._told, select.POLLIN)
    ended.poll()
    os.close(os.pidfd_open(process.pid))
    assert process.wait() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)

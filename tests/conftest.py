"""What holds for all tests."""

import ctypes
import functools
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.check.durations import Recorder
from tests.support import launches
from tests.support.coroutines import run_coroutine
from tests.support.pairwise import mark_the_rest_slow
from tests.support.simulated_loop import SimulatedLoop

# Tests run in as many processes as there are cores: libraries that start a thread for each core only get in each
# other's way. Read when numpy and torch are imported, which no other file does before this one.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# torch frees and takes the same megabytes in every operation. By default glibc returns them to the system, which clears
# their pages each time: a tenth of what transformers costs in tests.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
for name, size in ((_M_TRIM_THRESHOLD, 256 << 20), (_M_MMAP_THRESHOLD, 32 << 20)):
    ctypes.CDLL(None).mallopt(name, size)

# A shell that starts pytest in the background has it ignore interrupts, and with it every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed: on a busy machine any example may take long.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the seconds of each test file for `make check`")
    parser.addoption("--budget", action="store_true", help="fail on more launches than tests/launches.json allows")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        return
    if config.option.record:
        config.pluginmanager.register(Recorder())
    folder = tempfile.TemporaryDirectory(prefix="ns-launches-")
    config.add_cleanup(folder.cleanup)
    launches.start_counting(Path(folder.name) / "launched")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus != pytest.ExitCode.OK or hasattr(session.config, "workerinput"):
        return
    if session.config.getoption("--budget") and launches.beyond(launches.counted(), launches.budget()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    numbers = launches.counted()
    if any(numbers.values()):
        terminalreporter.write_line(f"launched: {', '.join(f'{number} {kind}' for kind, number in numbers.items())}")
    if terminalreporter.config.getoption("--budget"):
        for sentence in launches.beyond(numbers, launches.budget()):
            terminalreporter.write_line(sentence, red=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes, modules above all, lives as long as the process: looking for garbage in it takes longer
    than half of the tests do."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Most tests make an HTTP client, and each client would read a file of all certificate authorities."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("no-authorities")))
        yield


# Folders whose tests take longest. They come first, so that at the end no process waits for another's long test.
_LONGEST = ("chaos", "e2e", "simulation", "integration")


@functools.cache  # items of a file share its path
def _place(path: Path) -> int:
    folder = path.relative_to(Path(__file__).parent).parts[0]
    return _LONGEST.index(folder) if folder in _LONGEST else len(_LONGEST)


# Before pytest leaves out what is slow.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_the_rest_slow(items)
    items.sort(key=lambda item: _place(item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_coroutine(pyfuncitem, SimulatedLoop if pyfuncitem.get_closest_marker("simulated_time") else None)

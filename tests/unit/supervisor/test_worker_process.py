import asyncio
import os
import signal
import sys
from pathlib import Path

from numaserve.server.supervisor.process import WorkerProcess, worker_environment


def _ending(
    program: str, *, end_when: Path | None = None, grace_s: float = 0.1, stop: bool = False
) -> tuple[str, list[int]]:
    """How a process that runs `program` tells its end, and the ranks that were reported.

    It is ended by us once the file `end_when` exists, having been stopped by a signal if `stop` says so.
    """
    exits: list[int] = []

    async def scenario() -> str:
        read_end, write_end = os.pipe()
        process = WorkerProcess(
            3, [sys.executable, "-c", program], "ipc://x", lifeline_fd=read_end, inherited_fds=[], on_exit=exits.append
        )
        os.close(read_end)
        if end_when is not None:
            while not end_when.exists():
                await asyncio.sleep(0.01)
            if stop:
                process.signal(signal.SIGSTOP)
            await process.end(grace_s)
        await process.exited
        process.signal(signal.SIGTERM)  # too late, and harmless
        os.close(write_end)
        return process.ending()

    return asyncio.run(scenario()), exits


def test_the_exit_status_is_told() -> None:
    assert _ending("import sys; sys.exit(7)") == ("exited with status 7", [3])


def test_a_signal_is_told_by_its_name() -> None:
    ending, _ = _ending("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert ending == "was killed by SIGSEGV"


def test_a_worker_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "deaf"
    program = f"""
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(marker)!r}).touch()
time.sleep(3600)
"""
    assert _ending(program, end_when=marker) == ("was killed by SIGKILL (out of memory?)", [3])


def test_a_worker_that_is_stopped_ends_by_sigterm(tmp_path: Path) -> None:
    marker = tmp_path / "runs"
    program = f"import pathlib, time; pathlib.Path({str(marker)!r}).touch(); time.sleep(3600)"
    assert _ending(program, end_when=marker, grace_s=60.0, stop=True) == ("was killed by SIGTERM", [3])


def test_workers_start_no_threads_of_libraries_and_do_not_reach_systemd() -> None:
    environment = worker_environment({"PATH": "/bin", "NOTIFY_SOCKET": "/run/x", "OMP_NUM_THREADS": "64"})
    assert environment["PATH"] == "/bin"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "NOTIFY_SOCKET" not in environment

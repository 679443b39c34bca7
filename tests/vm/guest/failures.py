"""What dies, hangs or is told to stop."""

import os
import signal

from tests.vm.guest.service import (
    UNIT,
    Stream,
    complete,
    get,
    is_alive,
    main_pid,
    metric,
    restarted,
    run,
    settings,
    show,
    wait_until,
    workers,
)

_TOKENS = 48


def a_killed_worker_is_a_pause() -> str:
    """A stream whose worker is killed goes on, with the tokens that it would have had."""
    wanted = complete(_TOKENS)
    before = metric("numaserve_worker_restarts_total")
    old = [worker["pid"] for worker in workers()]
    stream = Stream(_TOKENS)
    stream.wait_for(6)
    os.kill(old[-1], signal.SIGKILL)
    assert stream.text() == wanted
    assert metric("numaserve_worker_restarts_total") == before + 1
    assert not any(map(is_alive, old)), "a worker of before is left"
    pause = metric("numaserve_resume_pause_seconds_sum")
    return f"the same {_TOKENS} tokens, after a pause of {pause:.1f} s"


def a_killed_front_end_is_started_again() -> str:
    """systemd starts the service again, and no worker of before is left."""
    front_end, old = main_pid(), [worker["pid"] for worker in workers()]
    os.kill(front_end, signal.SIGKILL)
    wait_until("the workers have ended", lambda: not any(map(is_alive, old)))
    wait_until("another front end is ready", lambda: show("ActiveState") == "active" and main_pid() != front_end)
    complete()
    return f"restarts: {show('NRestarts')}; workers {old} have ended"


def the_watchdog_ends_what_hangs() -> str:
    """A front end that stands still is ended by systemd, and started again."""
    settings("watchdog", "WatchdogSec=45", "TimeoutAbortSec=5")
    try:
        restarted()
        front_end = main_pid()
        os.kill(front_end, signal.SIGSTOP)
        wait_until("another front end is ready", lambda: main_pid() not in (0, front_end) and get("/readyz")[0] == 200)
    finally:
        settings("watchdog")
    log = run("journalctl", "-b", "-u", UNIT, "-o", "cat", "--no-pager")
    assert "Watchdog timeout" in log
    complete()
    return next(line for line in log.splitlines() if "Watchdog timeout" in line)


def reloading_keeps_the_process() -> str:
    """`systemctl reload` reaches the front end, which goes on."""
    front_end = main_pid()
    run("systemctl", "reload", UNIT)
    complete()
    assert (show("ActiveState"), main_pid()) == ("active", front_end)
    return f"process {front_end} goes on"


def stopping_drains() -> str:
    """`systemctl stop` lets a stream finish, takes nothing new, and ends with status 0."""
    settings("drain", "TimeoutStopSec=960")
    try:
        wanted = complete(_TOKENS)
        stream = Stream(_TOKENS)
        stream.wait_for(4)
        run("systemctl", "stop", "--no-block", UNIT)
        wait_until("new requests are refused", lambda: get("/readyz")[0] != 200)
        came = len(stream.events)
        text = stream.text()
        wait_until("the unit has ended", lambda: show("ActiveState") == "inactive")
        result = show("Result"), show("ExecMainStatus")
    finally:
        settings("drain")
        run("systemctl", "start", "--no-block", UNIT)  # each check behind this one starts it in its own way
    assert text == wanted
    assert result == ("success", "0"), f"it ended with {result}"
    return f"{came} of {_TOKENS} tokens had come; all {_TOKENS} came, status 0"

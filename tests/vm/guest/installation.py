"""From the installation to the removal."""

import json
import os
from pathlib import Path
from typing import Any

from tests.vm.guest.service import (
    CONFIG,
    CONTEXT,
    MODEL,
    NAME,
    PAYLOAD,
    STEP_SECONDS,
    Rebooting,
    complete,
    get,
    run,
    show,
    wait_until,
)

_TREE = str(PAYLOAD / "tree")
_CONFIG = f"""\
model: {MODEL}
served-model-name: {NAME}
port: 8000
max-running-requests: 8
context-length: {CONTEXT}
step-deadline-seconds: {STEP_SECONDS}
drain-seconds: {STEP_SECONDS}
"""
_OWN_SETTINGS = Path("/etc/systemd/system/numaserve.service.d/own.conf")  # an operator's: they outlive a reboot
_NOTES = Path("/var/log/checks-notes")  # what is kept from one check for a later one
_PLACES = ("/etc", "/home", "/opt", "/root", "/srv", "/usr", "/var")
# Of the system itself, whoever is installed.
_CHANGING = ("/var/log/", "/var/lib/systemd/", "/var/tmp/systemd-private-", "/var/lib/private", "/var/cache/private")


def install() -> None:
    """Run `make install-service`, which needs neither a network nor a compiler when wheels are there, and configure it.

    It is run before the machine is, with its disk for a root, where the machine's processors are emulated.
    """
    before = _files()
    (wheel,) = PAYLOAD.glob("numaserve-*.whl")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(PAYLOAD / "wheels"), "PIP_NO_CACHE_DIR": "1"}
    run("make", "-C", _TREE, "install-service", f"SERVICE_WHEEL={wheel}", **offline)
    CONFIG.write_text(_CONFIG)
    _OWN_SETTINGS.parent.mkdir()
    _OWN_SETTINGS.write_text(f"[Service]\nWatchdogSec={2 * STEP_SECONDS}\n")
    _note("made", sorted(_files() - before))


def installed() -> str:
    """What `make install-service` has installed finds its way about the machine."""
    if _noted("made") is None:
        install()
    _note("files", sorted(_files() - set(_noted("made") or ())))
    run("systemctl", "daemon-reload")
    topology = run("/opt/numaserve/current/bin/numaserve", "topology", COLUMNS="120")
    assert "│ 0-2 " in topology and "│ 3-4 " in topology, topology
    return "numaserve topology tells two nodes, of cores 0-2 and 3-4"


def ready() -> str:
    """The unit is started when requests are served, and not before."""
    run("systemctl", "enable", "--now", "--no-block", "numaserve")
    seen: set[tuple[str, int]] = set()

    def started() -> bool:
        state = show("ActiveState")
        assert state in ("inactive", "activating", "active"), f"the unit is {state}"
        status = get("/readyz")[0]
        seen.add((state, status))
        return state == "active"

    wait_until("the unit is active", started)
    text = complete()
    _note("text", text)
    assert ("activating", 0) in seen, f"it was never seen loading: {seen}"
    assert {status for state, status in seen if state == "active"} == {200}, f"active before it served: {seen}"
    return f"at once it answered {text!r}"


def a_reboot_brings_it_back() -> str:
    """The enabled unit serves after a reboot as it did at first."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    before = _noted("boot")
    if before is None:
        _note("boot", boot)
        run("systemctl", "reboot", "--no-block")
        raise Rebooting
    assert before != boot
    wait_until("the unit is active", lambda: show("ActiveState") == "active")
    assert complete() == _noted("text")
    return "the same answer as at first"


def removal_leaves_nothing() -> str:
    """`make uninstall-service PURGE=1` takes away all files, units and processes."""
    run("make", "-C", _TREE, "uninstall-service", "PURGE=1")
    before = _noted("files")
    assert before is not None
    left = sorted(_files() - set(before))
    assert not left, f"{len(left)} files are left: {left[:10]}"
    units = run("systemctl", "list-units", "--all", "--no-legend", "numaserve*").split()
    assert not units, f"units are left: {units}"
    named = [each for each in Path("/proc").glob("[0-9]*/cmdline") if b"numaserve" in each.read_bytes()]
    assert not named, f"processes are left: {named}"
    return f"of {len(before)} files before, none is more"


def _files() -> set[str]:
    found = {str(Path(folder, name)) for place in _PLACES for folder, _, names in os.walk(place) for name in names}
    return {name for name in found if not name.startswith(_CHANGING)}


def _note(name: str, value: object) -> None:
    _NOTES.mkdir(exist_ok=True)
    (_NOTES / name).write_text(json.dumps(value))


def _noted(name: str) -> Any:
    file = _NOTES / name
    return json.loads(file.read_text()) if file.exists() else None


if __name__ == "__main__":
    install()

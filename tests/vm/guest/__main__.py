"""``python3 -m tests.vm.guest``: runs the checks that have not run yet, tells their outcomes, and ends the machine."""

import json
import time
import traceback
from pathlib import Path

from tests.vm.guest.checks import CHECKS, NEEDED
from tests.vm.guest.service import PAYLOAD, UNIT, Rebooting, run

RESULTS = Path("/dev/ttyS1")  # the second serial port
_DONE = Path("/var/log/checks-done")  # outlives a reboot


def main() -> None:
    """Go on behind the check that had the machine rebooted, if there was one."""
    named = {*(PAYLOAD / "checks").read_text().split()}
    selected = [check for check in CHECKS if not named or check.__name__ in named or check in NEEDED]
    done = _DONE.read_text().split() if _DONE.exists() else []
    for check in selected:
        if check.__name__ in done:
            continue
        begin = time.monotonic()
        try:
            told, passed = check(), True
        except Rebooting:
            return
        except Exception as error:  # whatever it is, the others go on
            traceback.print_exc()
            told, passed = _causes(error), False
        with _DONE.open("a") as file:
            file.write(check.__name__ + "\n")
        outcome = {"name": check.__name__, "passed": passed, "seconds": time.monotonic() - begin, "told": told}
        _tell(outcome | {"is_last": check is selected[-1]})
        if not passed:
            print(run("journalctl", "-b", "-u", UNIT, "-n", "60", "--no-pager", "-o", "cat"), flush=True)
            if check in NEEDED:
                break
    run("systemctl", "poweroff", "--no-block")


def _causes(error: BaseException) -> str:
    """Return the error and those before it: a clean-up that fails would hide what it was called for."""
    before = error.__cause__ or error.__context__
    told = f"{type(error).__name__}: {error}"
    return told if before is None else f"{told}; after {_causes(before)}"


def _tell(outcome: dict[str, object]) -> None:
    print(outcome, flush=True)
    with RESULTS.open("w") as port:
        port.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()

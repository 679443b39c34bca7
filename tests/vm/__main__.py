"""``python -m tests.vm [CHECK ...]``: installs the service on a virtual machine and checks it there.

Needs root, mmdebstrap, mke2fs and qemu-system-x86_64; prints a line for each check. The exit status is 1 where one
failed, or where the machine ended before the last.
"""

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.vm.acceleration import Acceleration, acceleration
from tests.vm.image import install, make_base, make_payload
from tests.vm.machine import run_machine

FOLDER = Path(__file__).resolve().parents[2] / "build" / "vm"
_TOOLS = ("mmdebstrap", "mke2fs", "qemu-system-x86_64", "git", "unshare", "mount")


def main() -> int:
    """Make the images, run the machine, print what it tells."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    parser.add_argument(
        "checks", nargs="*", metavar="CHECK", help="besides those of the installation; all unless named"
    )
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel to install")
    parser.add_argument("--model", choices=["demo", "tiny"], help="demo with kvm, else tiny unless set")
    parser.add_argument("--accel", choices=["kvm", "tcg"], help="kvm where it works unless set")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian", help="of Debian, for the image")
    options = parser.parse_args()
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        print(f"make vm-test needs root, and these programs: {', '.join(missing or _TOOLS)}", file=sys.stderr)
        return 2
    base = make_base(FOLDER, options.mirror)
    accel, why = Acceleration(options.accel, "as told") if options.accel else acceleration(base.kernel)
    model = options.model or ("demo" if accel == "kvm" else "tiny")
    payload = make_payload(FOLDER, options.wheel, options.checks, tiny=model == "tiny")
    if accel == "tcg":
        base = install(FOLDER, base, payload)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C: it leaves no machine behind
    failed = 0
    last = None
    print(f"=== processors are {'virtualized (KVM)' if accel == 'kvm' else 'emulated'}: {why}", flush=True)
    print(f"=== the machine serves the {model} model; its console is in {base.console}", flush=True)
    for last in run_machine(base, payload, accel):
        print(f"{'ok    ' if last.passed else 'FAILED'} {last.seconds:5.0f} s  {last.name}: {last.told}", flush=True)
        failed += not last.passed
    if last is None or not last.is_last:
        print("FAILED: the machine ended before its last check", flush=True)
        return 1
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

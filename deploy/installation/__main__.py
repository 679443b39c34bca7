"""``python -m deploy.installation``: the command of `make install-service` and the other service targets."""

import argparse
import os
import sys
from pathlib import Path

from deploy.installation.errors import InstallationError
from deploy.installation.install import check, install, switch
from deploy.installation.manifest import read_manifest
from deploy.installation.remove import remove, uninstall
from deploy.installation.versions import current

EXIT_MISTAKE = 2
_RESTART = (
    "Next: run systemctl daemon-reload && systemctl restart numaserve (the first time: systemctl enable "
    "--now numaserve)"
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command. A mistake of the operator gives one line on standard error, and exit status 2."""
    options = _parser().parse_args(arguments)
    os.umask(0o022)  # the service runs as a different user than the installation
    try:
        print(_run(options))
    except InstallationError as error:
        print(f"numaserve: {error}", file=sys.stderr)
        return EXIT_MISTAKE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.installation", description=__doc__)
    parser.add_argument("command", choices=["check", "install", "switch", "versions", "remove", "uninstall"])
    parser.add_argument("--prefix", type=Path, required=True)
    parser.add_argument("--etc", type=Path, default=Path("/etc"))
    parser.add_argument("--var", type=Path, default=Path("/var"))
    parser.add_argument("--wheel", type=Path, help="wheel for `install`")
    parser.add_argument("--locks", type=Path, help="folder of lock files for `install`")
    parser.add_argument("--version", help="version for `switch` and `remove`")
    parser.add_argument(
        "--purge", action="store_true", help=("with `uninstall`: also remove configuration, models and caches")
    )
    return parser


def _run(options: argparse.Namespace) -> str:
    prefix = options.prefix
    match options.command:
        case "check":
            check(prefix, options.etc, options.var)
            return f"{prefix} can be used as the PREFIX of an installation"
        case "install":
            version = install(prefix, options.etc, options.var, options.wheel, options.locks)
            return f"Installed version {version}. {_RESTART}"
        case "switch":
            return f"Version {switch(prefix, options.version)} is current. {_RESTART}"
        case "remove":
            remove(prefix, options.version)
            return f"Removed version {options.version}"
        case "uninstall":
            left = uninstall(prefix, purge=options.purge)
            return f"Left in place: {', '.join(map(str, left))}" if left else "Removed everything"
    return _listed(prefix)


def _listed(prefix: Path) -> str:
    manifest = read_manifest(prefix)
    served = current(prefix)
    marks = {served: " (current)", manifest.previous if manifest else None: " (previous)"}
    return "\n".join(f"{version}{marks.get(version, '')}" for version in (manifest.versions if manifest else ()))


if __name__ == "__main__":
    sys.exit(main())

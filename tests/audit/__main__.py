"""``python -m tests.audit FOLDER``: judges what `make audit` has written there, `sbom.json` and `advisories.json`."""

import json
import sys
import tomllib
from pathlib import Path

from tests.audit.findings import license_findings, vulnerability_findings

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def main(folder: Path) -> int:
    """Print what was found. Returns the exit status: 0 when everything was looked at and nothing found."""
    allowed = tomllib.loads(_PROJECT.read_text())["tool"]["numaserve"]["audit"]["licenses"]
    components = json.loads((folder / "sbom.json").read_text())["components"]
    packages = json.loads((folder / "advisories.json").read_text())["dependencies"]
    findings = [*license_findings(components, allowed), *vulnerability_findings(packages)]
    print(*findings, sep="\n", end="\n" if findings else "")
    asked = sum("vulns" in package for package in packages)
    print(f"{len(components)} packages installed, {asked} of {len(packages)} audited, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""The targets of the Makefile, by audience: ``python -m tests.documentation.targets`` prints them for `make help`.

The lines `##` above a target describe it. A line `##@` names the audience of the targets below it.
"""

import re
from pathlib import Path

from tests.documentation.tables import code, table

_MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"
_LINE = re.compile(r"##@ (?P<audience>.+)|## (?P<text>.+)|(?P<target>[a-z][a-z-]*):(?!=)")


def by_audience() -> dict[str, dict[str, str]]:
    """Return the description of each target, or an empty text, by audience and name."""
    found: dict[str, dict[str, str]] = {}
    audience, text = "", []
    for line in filter(None, map(_LINE.match, _MAKEFILE.read_text().splitlines())):
        if line["audience"]:
            audience = line["audience"]
        elif line["text"]:
            text.append(line["text"])
        else:
            found.setdefault(audience, {}).setdefault(line["target"], " ".join(text))
            text = []
    return found


def tables() -> str:
    """Return a table for each audience."""
    parts = []
    for audience, targets in by_audience().items():
        rows = ((code(f"make {name}"), text) for name, text in targets.items())
        parts.append(f"### {audience}\n\n" + table(("target", "what it does"), rows))
    return "\n".join(parts)


def main() -> None:
    """Print the first clause about each target."""
    for audience, targets in by_audience().items():
        print(f"{audience}:")
        for name, text in targets.items():
            plain = re.sub(r" \(\[[^]]+\]\([^)]+\)\)|\[([^]]+)\]\([^)]+\)", r"\1", text).replace("`", "")
            print(f"  make {name:<17} {re.split(r'[.;:]( |$)', plain)[0]}")
        print()


if __name__ == "__main__":
    main()

"""`python -m tests.columns`: count the product files that one more limit, endpoint, option or operation touches.

A representative stands for each kind: every product file that names it is a file that the next one of its kind has to
touch. `--patch` counts the product files of patches instead, for a comparison with a change that was made.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.trees import ROOT, git_text

PRODUCT = ("server", "workers", "kernels", "shm_comm", "configs", "numaserve", "deploy")
# Names that mean nothing else in the product: `score` would also count experts and tokenizers.
REPRESENTATIVES: Mapping[str, str] = {
    "limit": "window_pages",
    "endpoint": "rerank",
    "option": "repetition_penalty",
    "operation": "rms_norm",
}


def spellings(name: str) -> re.Pattern[str]:
    """Return the pattern of a snake_case name as a word, with dashes, or in the CamelCase name of a class."""
    words = name.split("_")
    camel = "".join(word.capitalize() for word in words)
    return re.compile(rf"\b(?:{name}|{'-'.join(words)})\b|\b{camel}(?![a-z])")


def naming(name: str, texts: Mapping[str, str]) -> list[str]:
    """Return the paths of `texts` that are named after `name`, or whose text names it."""
    pattern = spellings(name)
    return sorted(path for path, text in texts.items() if pattern.search(path) or pattern.search(text))


def patched(numstat: str) -> list[str]:
    """Return the product files in the output of `git apply --numstat`."""
    paths = (line.split("\t")[2] for line in numstat.splitlines())
    return sorted({path for path in paths if path.split("/")[0] in PRODUCT})


def _product() -> dict[str, str]:
    """Return the texts of the product, by path."""
    paths = git_text("ls-files", "--cached", "--others", "--exclude-standard", "--", *PRODUCT).splitlines()
    return {path: (ROOT / path).read_text(errors="replace") for path in paths if (ROOT / path).is_file()}


def _print(kind: str, name: str, files: Iterable[str], *, listed: bool) -> None:
    found = list(files)
    print(f"{kind:10}{name:20}{len(found):4} files")
    for file in found if listed else ():
        print(f"    {file}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.columns", description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="list the files")
    parser.add_argument(
        "--patch", nargs="+", type=Path, metavar="FILE", help="count the product files of these patches"
    )
    options = parser.parse_args()
    if options.patch:
        for patch in options.patch:
            files = patched(git_text("apply", "--numstat", str(patch.resolve())))
            _print("patch", patch.name, files, listed=options.verbose)
        return 0
    texts = _product()
    for kind, name in REPRESENTATIVES.items():
        _print(kind, name, naming(name, texts), listed=options.verbose)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The test files that are nearest to a file of the checkout: by name, by mirrored folder, by area.

Coverage was rejected: it traces neither installed packages nor forked workers. So were imports: they reach hundreds of
files from one layer, and none from a family, which is loaded by its name.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

# The folders of tests that mirror a folder of the product, and those that run it most directly.
_AREAS = {
    "server": ("unit", "api", "service", "gateway", "simulation"),
    "workers": ("unit/workers", "loading"),
    "kernels": ("kernels", "shm_comm"),
    "shm_comm": ("shm_comm", "kernels"),
    "configs": ("unit/config", "documentation"),
    "deploy": ("audit", "documentation"),
    "docs": ("documentation",),
    "numaserve": ("integration/test_import_root.py",),
}


def nearest(root: Path, file: str) -> Iterator[list[str]]:
    """Yield all test files of the checkout `root`, those that are `near` to one of its files first."""
    groups = [*near(root, file)]
    yield from groups
    if rest := [*dict.fromkeys(_below(root, ["tests"])).keys() - {each for group in groups for each in group}]:
        yield sorted(rest)


def near(root: Path, file: str) -> Iterator[list[str]]:
    """Yield groups of test files for a file of the checkout `root`, the nearest first; each test file once.

    The groups are: tests of its name, the folder that mirrors its folder, its area. A test file is its own nearest
    test; a helper has the tests that name it.
    """
    done: set[str] = set()
    for group in _groups(root, Path(file)):
        found = [each for each in dict.fromkeys(group) if each not in done]
        done.update(found)
        if found:
            yield found


def _groups(root: Path, file: Path) -> Iterator[Sequence[str]]:
    top, *inner = file.parts
    if top == "tests":
        yield [str(file)] if file.name.startswith("test_") and (root / file).exists() else _naming(root, file)
        yield _below(root, [str(file.parent)])
        return
    if top != "docs":
        yield [str(path.relative_to(root)) for path in sorted((root / "tests").rglob(f"test_{file.stem}*.py"))]
    mirrored = [f"tests/unit/{top}/{inner[0]}", f"tests/unit/{inner[0]}", f"tests/{inner[0]}"] if len(inner) > 1 else []
    yield _below(root, mirrored)
    yield _below(root, [f"tests/{each}" for each in _AREAS.get(top, ("documentation", "audit"))])


def _below(root: Path, places: Sequence[str]) -> list[str]:
    """Return the test files below folders, or the files themselves, where there are such."""
    found: list[str] = []
    for place in places:
        path = root / place
        paths = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        found += [str(each.relative_to(root)) for each in paths]
    return found


def _naming(root: Path, helper: Path) -> list[str]:
    """Return the test files that import a helper, by its module or by its name in their own folder."""
    package, name = re.escape(".".join(helper.parent.parts)), re.escape(helper.stem)
    module = rf"(?:from|import) (?:{package}\.)?{name}\b"
    imports = re.compile(rf"^\s*(?:{module}|from {package} import .*\b{name}\b)", re.MULTILINE)
    return [each for each in _below(root, ["tests"]) if imports.search((root / each).read_text())]

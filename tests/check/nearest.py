"""The test files that are nearest to a file of the checkout: by name, by import, by mirrored folder, by area.

Coverage was rejected: it traces neither installed packages nor forked workers. So were imports through other modules:
they reach hundreds of files from one layer, and none from a family, which is loaded by its name.
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

    The groups are: tests of its name, tests that import it, the folder that mirrors its folder, its area. A test file
    is its own nearest test; a helper has the tests that import it.
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
        is_test = file.name.startswith("test_") and (root / file).exists()
        yield [str(file)] if is_test else _importing(root, file, from_folder=True)
        yield _below(root, [str(file.parent)])
        return
    if top != "docs":
        name = file.stem.removeprefix("numaserve_")  # the prefix of the ring's headers
        yield [str(path.relative_to(root)) for path in sorted((root / "tests").rglob(f"test_{name}*.py"))]
    if file.suffix == ".py":
        yield _importing(root, Path("numaserve") / file)
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


def _importing(root: Path, module: Path, *, from_folder: bool = False) -> list[str]:
    """Return the test files that import a module by its path, or by its name alone with `from_folder`."""
    package, name = re.escape(".".join(module.parent.parts)), re.escape(module.stem)
    whole = rf"(?:from|import) (?:{package}\.){'?' if from_folder else ''}{name}\b"
    imports = re.compile(rf"^\s*(?:{whole}|from {package} import .*\b{name}\b)", re.MULTILINE)
    return [each for each in _below(root, ["tests"]) if imports.search((root / each).read_text())]

"""The table of mutants: each one, the test that kills it, and the seconds until it did."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants.sites import Site, sites_of

TABLE = Path(__file__).with_name("mutants.jsonl")
# The number of mutants of each folder; a file counts for the innermost one. The top folders share forty by their lines,
# with three at least. Surfaces, engine, loading and operations have 24 more, because transcripts, simulated time and
# tables of cases replaced many of their tests.
SHARES = {
    "server": 15,
    "server/surfaces": 7,
    "server/engine": 5,
    "workers": 3,
    "workers/models": 8,
    "workers/weights": 3,
    "workers/layers": 4,
    "kernels": 1,
    "kernels/ops": 7,
    "kernels/runtime": 8,
    "shm_comm": 3,
}
SUFFIXES = {".py", ".cc", ".h", ".inl"}


@dataclass(frozen=True)
class Mutant:
    """A row of the table.

    `was` and `becomes` are lines without their indentation. Where one line is found in several places, the lines before
    it are part of both. Without a `killer`, no test has killed the mutant. Without `seconds`, none has met it yet.
    """

    file: str
    was: str
    becomes: str
    killer: str = ""
    seconds: int | None = None
    note: str = ""


class Stale(Exception):
    """The lines of a mutant are nowhere, or in several places."""


@dataclass(frozen=True)
class Place:
    """Lines of a file below the root, from 0."""

    file: str
    first: int
    count: int


class Sources:
    """The sources of the product below `root`, line by line without indentation."""

    def __init__(self, root: Path) -> None:
        found = {path for folder in SHARES for path in (root / folder).rglob("*") if path.suffix in SUFFIXES}
        self.files = {str(path.relative_to(root)): _stripped(path.read_text()) for path in sorted(found)}

    def place(self, mutant: Mutant) -> Place:
        """Return where the lines of `mutant` are: in its file, or in another one to which they have moved.

        Raises `Stale` where they are nowhere or in several places.
        """
        places = self._places(mutant.was, [mutant.file] if mutant.file in self.files else [])
        places = places or self._places(mutant.was, self.files)
        if len(places) != 1:
            where = [f"{each.file}:{each.first + 1}" for each in places] or "nowhere"
            raise Stale(f"{mutant.was!r} of {mutant.file} is found {where}; `python -m tests.mutants draw` replaces it")
        return places[0]

    def _places(self, text: str, files: Iterable[str]) -> list[Place]:
        wanted = text.split("\n")
        return [
            Place(file, first, len(wanted))
            for file in files
            for first in self._firsts(file, wanted[0])
            if self.files[file][first : first + len(wanted)] == wanted
        ]

    def _firsts(self, file: str, line: str) -> Iterator[int]:
        return (number for number, each in enumerate(self.files[file]) if each == line)

    def mutant(self, file: str, site: Site) -> Mutant | None:
        """Return the mutant of a site with the fewest lines before its own that make it unique, at most four."""
        lines = self.files[file]
        for first in range(site.line - 1, max(site.line - 6, -1), -1):
            before = lines[first : site.line - 1]
            was, becomes = ("\n".join([*before, line]) for line in (lines[site.line - 1], site.becomes.strip()))
            if len(self._places(was, self.files)) == 1:
                return Mutant(file, was, becomes)
        return None


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def draw(root: Path, rows: Iterable[Mutant], seed: int) -> Iterator[Mutant]:
    """Yield the rows that are not stale, and new ones until each folder has its share, each in another file."""
    rng, sources = random.Random(seed), Sources(root)
    kept = [row for row in rows if not _is_stale(sources, row)]
    yield from kept
    taken = {sources.place(row).file for row in kept}
    for folder, share in SHARES.items():
        missing = share - sum(_folder(file) == folder for file in taken)
        # By the lines of each file, so that a long one is as likely as its parts.
        files = [file for file in sources.files if _folder(file) == folder]
        weights = [len(sources.files[file]) for file in files]
        while missing > 0:
            [file] = rng.choices(files, weights)
            sites = [*sites_of(root / file)]
            drawn = sources.mutant(file, rng.choice(sites)) if sites and file not in taken else None
            if drawn is not None:
                taken.add(file)
                missing -= 1
                yield drawn


def _folder(file: str) -> str:
    """Return the innermost folder of `SHARES` that has the file."""
    return max((folder for folder in SHARES if file.startswith(f"{folder}/")), key=len)


def _is_stale(sources: Sources, mutant: Mutant) -> bool:
    try:
        sources.place(mutant)
    except Stale:
        return True
    return False


def read() -> list[Mutant]:
    """Return the rows of the table."""
    return [Mutant(**json.loads(line)) for line in TABLE.read_text().splitlines()]


def write(rows: Iterable[Mutant]) -> None:
    """Write the table."""
    TABLE.write_text("".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows))

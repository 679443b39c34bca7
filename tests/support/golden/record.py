"""Makes the record and compares with it.

The record is keyed by the digest of a checkpoint's own files, so that a library which writes other bytes is seen as
that: a key that is absent is a difference. What does not depend on the instruction set is recorded once.
"""

import json
import tempfile
from collections.abc import Container, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.support.golden.adapter import Found, Refused, look
from tests.support.golden.cases import CHECKPOINTS, Case, make_cases

RECORD = Path(__file__).with_name("recorded.json")
ISAS = ("avx512", "portable")
Entry = dict[str, Any]  # of a case: see `_summary`
Record = dict[str, dict[str, Entry]]  # by the checkpoint's digest, and by how it is served


def digest_of(lines: Iterable[str]) -> str:
    """Of some lines."""
    return sha256("\n".join(lines).encode()).hexdigest()[:12]


def measure(isa: str, names: Container[str]) -> Record:
    """All cases of the checkpoints of those names on the instruction set in use, which is `isa`."""
    record: Record = {}
    with tempfile.TemporaryDirectory(prefix="numaserve-golden-") as folder:
        made: dict[str, tuple[Path, str]] = {}
        for case in (each for each in make_cases() if each.checkpoint in names):
            if case.checkpoint not in made:
                made[case.checkpoint] = make_checkpoint(case.checkpoint, Path(folder))
            path, digest = made[case.checkpoint]
            record.setdefault(digest, {"checkpoint": {"name": case.checkpoint}})[case.serving.key] = entry(
                path, case, isa
            )
    return record


def make_checkpoint(name: str, folder: Path) -> tuple[Path, str]:
    """Below `folder`, and the digest of its files."""
    path = CHECKPOINTS[name](folder / str(len(list(folder.iterdir()))))
    files = [path] if path.is_file() else sorted(path.iterdir())
    content = sha256()
    for file in files:
        content.update(f"{file.name if path.is_dir() else ''} {file.stat().st_size} ".encode() + file.read_bytes())
    return path, content.hexdigest()[:16]


def entry(path: Path, case: Case, isa: str) -> Entry:
    """What is recorded of a case."""
    try:
        found = look(path, case.serving)
    except Refused:
        return {"refused": True}
    return _summary(found, isa)


def _summary(found: Found, isa: str) -> Entry:
    return {
        "nodes": [digest_of(each) for each in found.nodes],
        "arena": found.arena,
        "packed": [digest_of(each) for each in found.packed],
        "planned": digest_of(found.planned),
        "operations": [digest_of(each) for each in found.operations],
        f"answers {isa}": digest_of(found.answers),
    }


def merge(records: Iterable[Record]) -> Record:
    """One record of those of several instruction sets. Raises `ValueError` where they differ in what they must not."""
    merged: Record = {}
    for record in records:
        for digest, cases in record.items():
            for key, found in cases.items():
                old = merged.setdefault(digest, {}).setdefault(key, {})
                if any(old[part] != found[part] for part in old.keys() & found.keys()):
                    raise ValueError(
                        f"{cases['checkpoint']['name']}, {key}: the instruction sets differ: {old} {found}"
                    )
                old |= found
    return merged


def differences(recorded: Record, found: Record, isa: str, names: Container[str]) -> list[str]:
    """What is not as recorded, by case, of the checkpoints of those names; of the arena only that it is larger."""
    told = []
    recorded = {digest: cases for digest, cases in recorded.items() if cases["checkpoint"]["name"] in names}
    for digest, cases in found.items():
        name = cases["checkpoint"]["name"]
        if digest not in recorded:
            told.append(f"{name}: no checkpoint of these bytes is recorded ({digest})")
            continue
        told += [
            f"{name}, {key}: {'; '.join(parts)}"
            for key, each in cases.items()
            if (parts := _differing(recorded[digest].get(key), each))
        ]
    keys = {(digest, key) for digest, cases in recorded.items() for key in cases}
    gone = keys - {(digest, key) for digest, cases in found.items() for key in cases}
    return told + [f"{recorded[digest]['checkpoint']['name']}, {key}: not looked at on {isa}" for digest, key in gone]


def _differing(old: Entry | None, new: Entry) -> list[str]:
    if old is None:
        return ["not recorded"]
    if "refused" in old or "refused" in new:
        return [] if old == new else ["served, not refused" if "refused" in old else "refused"]
    parts = [part for part, value in new.items() if part not in {"arena", "checkpoint"} and old.get(part) != value]
    if len(old.get("arena", [])) != len(new.get("arena", [])) or any(
        now > before for before, now in zip(old.get("arena", []), new.get("arena", []), strict=False)
    ):
        parts.append(f"arena of {new['arena']} bytes, recorded are {old['arena']}")
    return parts


def load_record() -> Record:
    """The committed one."""
    record: Record = json.loads(RECORD.read_text())
    return record


def save_record(record: Record) -> None:
    """A line for each case."""
    lines = []
    for digest, cases in record.items():
        rows = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(each, separators=(',', ':'))}" for key, each in cases.items()
        )
        lines.append(f' "{digest}": {{\n{rows}\n }}')
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")

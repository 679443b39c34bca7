"""The bits that workers compute for small models, and the record of them; see `test_golden_bits.py`.

The weights depend on no generator of random numbers that a library may change: they are raw numbers of Philox, scaled
by powers of two. Requests are greedy, so that a change of the sampler changes no bit here.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numaserve.kernels import _native
from numaserve.server.kv_disk.fingerprint import table_values
from numaserve.workers.interface.numerics import NUMERICS_VERSION
from numaserve.workers.interface.settings import BF16_WEIGHTS, KvCacheDtype
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.same_bits import GREEDY, QUANTIZED, make_group, save_tiny_model, scheduler_config
from tests.support.traffic import Request, Traffic, one_by_one

RECORD = Path(__file__).with_suffix(".json")
_FORMATS = {"bf16": BF16_WEIGHTS} | {f"{each.linear}-{each.activations}": each for each in QUANTIZED}
# Model, format of weights, type of the cache, ranks: each kind of cache, of experts, of weights and of attention.
Case = tuple[str, str, KvCacheDtype, int]
CASES: dict[str, Case] = {
    " ".join(map(str, case)): case
    for case in (
        ("llama", "bf16", "bf16", 1),
        ("llama", "bf16", "bf16", 2),
        *(("llama", name, "bf16", 1) for name in _FORMATS if name != "bf16"),
        ("llama", "bf16", "fp8_e4m3", 1),
        ("gemma2", "bf16", "int8", 1),
        ("qwen2_moe", "bf16", "bf16", 1),
        ("qwen2_moe", "int4-int8", "bf16", 1),
        ("deepseek_v3", "bf16", "bf16", 1),
        ("gpt_oss", "bf16", "bf16", 1),
        ("qwen3_5", "bf16", "bf16", 1),
        ("granite_hybrid", "bf16", "bf16", 1),
    )
}


def instruction_sets() -> list[str]:
    """Return the instruction sets of this machine, without emulated ones."""
    return [name for name in _native.available_isas() if name != "amx_emulated"]


def machine() -> str:
    """Return a name for the values of the machine's numpy and libm, of which tables are made."""
    return hashlib.sha256(table_values()).hexdigest()[:16]


def digest_of(case: Case, isa: str, folder: Path) -> str:
    """Return a digest of all that a few requests are answered: tokens and log-probabilities, of prompts too."""
    name, formats, kv_cache_dtype, tp = case
    model = _with_raw_weights(save_tiny_model(name, folder))
    with make_group(model, tp, isa=isa, formats=_FORMATS[formats], kv_cache_dtype=kv_cache_dtype) as group:
        answers = one_by_one(Traffic(group, scheduler_config()), _requests())
    assert not any(answer.nan for answer in answers)
    return hashlib.sha256(repr(answers).encode()).hexdigest()[:32]


def recorded() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return the recorded digests by machine, instruction set and case."""
    return json.loads(RECORD.read_text())["machines"]


def renew(folder: Path) -> None:
    """Record this machine. Digests of other machines stay only if their version is that of this tree.

    Ends the process if digests have changed and the version has not.
    """
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {"version": NUMERICS_VERSION, "machines": {}}
    machines = known["machines"] if known["version"] == NUMERICS_VERSION else {}
    found = {
        isa: {name: digest_of(case, isa, folder / f"{isa}-{index}") for index, (name, case) in enumerate(CASES.items())}
        for isa in instruction_sets()
    }
    before = machines.get(machine(), {})
    if any(found[isa][name] != before[isa].get(name, found[isa][name]) for isa in before for name in found[isa]):
        raise SystemExit("bits have changed: raise NUMERICS_VERSION in workers/interface/numerics.py first")
    machines[machine()] = found
    RECORD.write_text(json.dumps({"version": NUMERICS_VERSION, "machines": machines}, indent=1) + "\n")


def _requests() -> list[Request]:
    numbers = _raw("requests", 1000) % (checkpoints.VOCAB - 3) + 3
    prompts = [numbers[:33], numbers[33:133], numbers[200:500]]
    return [
        Request(prompt.tolist(), GREEDY, count, prompt_logprobs=count == 6)
        for prompt, count in zip(prompts, (40, 6, 6), strict=True)
    ]


def _with_raw_weights(folder: Path) -> Path:
    for path in folder.glob("*.safetensors"):
        tensors = {name: _raw_weights(name, tensor) for name, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    return folder


def _raw_weights(name: str, old: torch.Tensor) -> torch.Tensor:
    """Return values that bf16 holds exactly: about 1 for vectors, and of the usual size for matrices."""
    whole = torch.from_numpy((_raw(name, old.numel()) % 256).astype(np.float32) - 128).reshape(old.shape)
    if old.ndim == 1:
        return (1 + torch.round(whole / 8) / 128).to(old.dtype)
    scale = 2.0 ** -(7 + (old.shape[-1].bit_length() - 1) // 2)
    return (whole * scale).to(old.dtype)


def _raw(name: str, count: int) -> np.ndarray:
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    return np.random.Philox(key=key).random_raw(count)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        renew(Path(scratch))

"""Writes the checkpoints that a record needs, once, into a folder that all trees under test read."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import transformers as hf
from gguf import TokenType

from tests.golden.scripted_model import write_scripted
from tests.support import checkpoints
from tests.support.families import row
from tests.support.families.table import FAMILIES
from tests.support.predicting import save_predicting
from tests.support.published_checkpoints import save_published, small_deepseek, small_llama, small_qwen2_moe
from tests.support.published_mxfp4 import save_mxfp4, small_gpt_oss
from tests.support.tokenizer_builders import byte_level_backend

TEMPLATE = """{%- for message in messages %}<s>{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
_ROUTED = {"moe_intermediate_size": 256, "num_experts_per_tok": 2}
# Widths that are multiples of the blocks of all types.
_WIDE: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "llama": lambda: hf.LlamaConfig(**checkpoints.sizes(256, 4, 2, 512)),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**checkpoints.sizes(256, 4, 2, 256, **_ROUTED), num_experts=6),
    "deepseek_v3": lambda: hf.DeepseekV3Config(
        **checkpoints.sizes(256, 2, 2, 256, q_lora_rank=256, kv_lora_rank=256, n_routed_experts=8, **_ROUTED),
        **row.LATENT_HEADS,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
    ),
}
_EXPERTS = {"qwen2_moe": small_qwen2_moe, "deepseek": small_deepseek}


def write_checkpoints(names: Iterable[str], folder: Path) -> None:
    """Write the checkpoints that are not there yet; the name of one says its kind and its case."""
    folder.mkdir(exist_ok=True)
    for name in sorted({*names} - {"demo"}):
        path = folder / name
        if not path.exists():
            kind, _, case = name.removesuffix(".gguf").partition("-")
            partial = folder / f"partial-{name}"
            if not name.endswith(".gguf"):
                partial.mkdir(exist_ok=True)
            _WRITERS[kind](case, partial)
            partial.rename(path)


def _write_family(case: str, folder: Path) -> None:
    checkpoints.save(checkpoints.random_model(case), folder)
    _add_tokenizer(folder)


def _write_layout(case: str, folder: Path) -> None:
    family, _, layout = case.partition("-")
    save_published(_EXPERTS.get(family, small_llama)(), folder, layout.replace("_", " "))
    _add_tokenizer(folder)


def _write_mxfp4(_: str, folder: Path) -> None:
    save_mxfp4(small_gpt_oss(), folder)
    _add_tokenizer(folder)


def _write_predicting(case: str, folder: Path) -> None:
    save_predicting(case, folder)
    _add_tokenizer(folder)


def _write_blocks(case: str, path: Path) -> None:
    """A GGUF file whose matrices have one type; an embedding of another one may follow a plus sign."""
    family, _, kinds = case.partition("-")
    _write_gguf(checkpoints.build(_WIDE[family]()), path, kinds)


def _write_gguf_family(case: str, path: Path) -> None:
    if case == "gpt_oss":
        _write_gguf(small_gpt_oss(swiglu_limit=7.0), path, "Q8_0")
    else:
        _write_gguf(_gguf_model(case), path, "BF16")


def _gguf_model(case: str) -> hf.PreTrainedModel:
    if case != "qwen2_moe":
        return checkpoints.random_model(case)
    config: Any = FAMILIES[case].config()
    config.mlp_only_layers = []  # a file has no dense layers between those with experts
    return checkpoints.build(config)


def _write_gguf(model: hf.PreTrainedModel, path: Path, kinds: str) -> None:
    kind, _, embedding = kinds.partition("+")
    with mock.patch.object(gguf, "GGUFWriter", _WithTokenizer):
        checkpoints.save_gguf(model, path, kind, embedding=embedding or None)


class _WithTokenizer(gguf.GGUFWriter):
    """A writer of files that carry the byte-level tokenizer."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        model = json.loads(byte_level_backend().to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
        unused = [f"<unused{index}>" for index in range(len(tokens), checkpoints.VOCAB)]
        types = [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(tokens) - 2) + [TokenType.UNUSED] * len(unused)
        self.add_tokenizer_model("gpt2")
        self.add_tokenizer_pre("default")
        self.add_token_list([*tokens, *unused])
        self.add_token_types(types)
        self.add_token_merges([" ".join(merge) for merge in model["merges"]])
        self.add_add_bos_token(True)
        self.add_chat_template(TEMPLATE)


def _write_judging(case: str, folder: Path) -> None:
    """A reranker, which answers with one of two tokens."""
    checkpoints.save(checkpoints.random_model(case), folder)
    _add_tokenizer(folder, "yes", "no")


def _add_tokenizer(folder: Path, *words: str) -> None:
    backend = byte_level_backend()
    backend.add_tokens([*words])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


_WRITERS: dict[str, Callable[[str, Path], None]] = {
    "family": _write_family,
    "layout": _write_layout,
    "mxfp4": _write_mxfp4,
    "predicting": _write_predicting,
    "judging": _write_judging,
    "blocks": _write_blocks,
    "gguf": _write_gguf_family,
    "scripted": write_scripted,
}

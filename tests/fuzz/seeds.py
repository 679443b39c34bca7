"""``python -m tests.fuzz.seeds``: writes the inputs that fuzzing begins with."""

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as hf
import yaml
from msgspec import Raw
from msgspec.structs import replace
from numaserve.configs import presets
from numaserve.server.supervisor.agent_messages import (
    Beaten,
    Claim,
    Describe,
    Described,
    End,
    Failed,
    Mask,
    Started,
    StartStage,
    encode_message,
)
from numaserve.server.supervisor.cpu_time import ThreadTime
from numaserve.server.supervisor.judge import RankLook
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import (
    AdapterLoaded,
    CancelMove,
    DiskRecord,
    Launch,
    LoadAdapter,
    LoraAdapter,
    PlacedRows,
    ProfileRequest,
    ReadRecords,
    RecordsMoved,
    SamplingParams,
    SeqPlan,
    SeqResult,
    SlotInit,
    StepPlan,
    StepResult,
    TokenLogprobs,
    TowerWork,
    WriteRecords,
    encode,
)
from safetensors.numpy import save

from tests.fuzz.targets import KINDS, TEXT_COLUMNS
from tests.support import checkpoints, gguf_pixtral, llama4_vision, pixtral
from tests.support.checkpoints import build
from tests.support.checkpoints import sizes as sizes_of
from tests.support.gguf_vision import save_tower
from tests.support.image_files import exif, in_file, pattern
from tests.support.published import LAYOUTS
from tests.support.token_heads import random_heads

CORPUS = Path(__file__).with_name("corpus")
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 99,
}
_PLAIN = _SIZES | {"num_key_value_heads": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
_CLASSES = (
    "Llama",
    "Qwen2",
    "Qwen3",
    "Qwen3Moe",
    "Gemma2",
    "Gemma3",
    "Phi3",
    "Granite",
    "Mixtral",
    "DeepseekV3",
    "GptOss",
)
_MORE = {
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0},
}  # fmt: skip


def main() -> None:
    """Write them anew."""
    for name, inputs in {
        "gguf": _gguf(),
        "mmproj": _towers(),
        "safetensors": _safetensors(),
        "torch": _torch(),
        "model-config": _configs(),
        "model-folder": _folders(),
        "settings": _settings(),
        "frames": _frames(),
        "grammars": _grammars(),
        "images": _images(),
    }.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            (folder / f"seed-{number:02}").write_bytes(data)


def _gguf() -> Iterator[bytes]:
    path = CORPUS / "writing"
    for architecture in ("llama", "qwen2", "gemma2", "deepseek2"):
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_context_length(128)
        writer.add_embedding_length(32)
        writer.add_block_count(1)
        writer.add_feed_forward_length(32)
        writer.add_head_count(2)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_token_list([b"a", b"b", b"</s>"])
        writer.add_array("general.tags", [1, 2])
        for name, shape in {
            "token_embd.weight": (3, 32),
            "blk.0.attn_q.weight": (32, 32),
            "output_norm.weight": (32,),
        }.items():
            writer.add_tensor(name, np.zeros(shape, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        yield path.read_bytes()
    path.unlink()


def _towers() -> Iterator[bytes]:
    path = CORPUS / "writing"
    eyes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "num_hidden_layers": 1}
    sizes = sizes_of(hidden=TEXT_COLUMNS, heads=2, kv_heads=1, intermediate=32, layers=1)
    config = hf.Idefics3Config(
        text_config=hf.LlamaConfig(**sizes).to_dict(), vision_config={**eyes, "image_size": 8, "patch_size": 2}
    )
    for kind in ("F16", "Q8_0"):
        yield save_tower(build(config), path, kind, swapped=kind == "F16").read_bytes()
    text = hf.MistralConfig(**sizes, sliding_window=None).to_dict()
    vision = {"model_type": "pixtral", "image_size": 8, "patch_size": 2, "hidden_act": "silu", **eyes}
    yield gguf_pixtral.save_tower(build(hf.Mistral3Config(text_config=text, vision_config=vision)), path).read_bytes()
    path.unlink()


def _safetensors() -> Iterator[bytes]:
    for kind in (np.float32, np.float16, np.int32, np.uint8):
        yield save({"a": np.zeros((2, 3), kind), "b": np.zeros((0, 4), kind), "c": np.zeros((), kind)}, {"k": "v"})


def _torch() -> Iterator[bytes]:
    path = CORPUS / "writing"
    for dtype in (torch.float16, torch.float32):
        torch.save(random_heads(6, 3).vectors.to(dtype).state_dict(), path)
        yield path.read_bytes()
    path.unlink()


def _configs() -> Iterator[bytes]:
    for name in _CLASSES:
        yield json.dumps({"architectures": [f"{name}ForCausalLM"], **_PLAIN, "model_type": name.lower()}).encode()
    for key, value in _MORE.items():
        yield json.dumps({"architectures": ["LlamaForCausalLM"], **_PLAIN, "rope_scaling": value, "name": key}).encode()
    for layout in LAYOUTS.values():
        config = {"architectures": ["LlamaForCausalLM"], **_PLAIN, "quantization_config": layout.config}
        yield json.dumps(config).encode()
    for case in (pixtral.CASES | llama4_vision.CASES).values():
        made = case()
        yield json.dumps({**made.to_diff_dict(), "architectures": [checkpoints.architecture(made)]}).encode()


def _folders() -> Iterator[bytes]:
    config = {"architectures": ["LlamaForCausalLM"], **_PLAIN}
    added = {"content": "<s>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "unk_token": None}
    tokenizer = {"version": "1.0", "model": model, "added_tokens": [{"id": 3, "single_word": False, **added}]}
    yield json.dumps({
        "config.json": config,
        "generation_config.json": {"eos_token_id": [3], "temperature": 0.7, "top_k": 20, "top_p": 0.9},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": added, "added_tokens_decoder": {"4": added},
                                  "chat_template": "{{ messages }}", "add_bos_token": True},
        "special_tokens_map.json": {"eos_token": "<s>"},
    }).encode()  # fmt: skip
    yield json.dumps({
        "modules.json": [{"type": f"sentence_transformers.models.{kind}", "path": path}
                         for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2"))],
        "1_Pooling/config.json": {"pooling_mode_lasttoken": True},
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        "model.safetensors.index.json": {"weight_map": {"a": "model-00001-of-00002.safetensors"}},
    }).encode()  # fmt: skip
    eyes = {"hidden_size": 64, "num_attention_heads": 2, "image_size": 64, "patch_size": 16, "num_hidden_layers": 1}
    sees = {"architectures": ["Idefics3ForConditionalGeneration"], "text_config": _PLAIN, "vision_config": eyes}
    yield json.dumps({
        "config.json": {**sees, "scale_factor": 2, "image_token_id": 7},
        "preprocessor_config.json": {"max_image_size": {"longest_edge": 64}, "size": {"longest_edge": 256},
                                     "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 1},
        "processor_config.json": {"image_seq_len": 4, "processor_class": "Idefics3Processor"},
    }).encode()  # fmt: skip
    text = {**_PLAIN, "sliding_window": 4}
    yield json.dumps({
        "config.json": {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
                        "text_config": text, "vision_config": eyes, "mm_tokens_per_image": 4, "image_token_id": 7,
                        "boi_token_index": 8, "eoi_token_index": 9},
        "preprocessor_config.json": {"size": {"height": 64, "width": 64}, "resample": 2, "image_seq_length": 4},
    }).encode()  # fmt: skip
    pooled = {**eyes, "head_dim": 32, "pooling_kernel_size": 2, "position_embedding_size": 16}
    yield json.dumps({
        "config.json": {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
                        "text_config": {**text, "use_bidirectional_attention": "vision"}, "vision_config": pooled,
                        "image_token_id": 7, "boi_token_id": 8, "eoi_token_id": 9},
        "processor_config.json": {"image_processor": {"patch_size": 16, "pooling_kernel_size": 2,
                                                      "max_soft_tokens": 70, "resample": 3}},
    }).encode()  # fmt: skip


def _settings() -> Iterator[bytes]:
    yield yaml.safe_dump({"model": "demo", "tp": 2, "quantization": "int8", "served-model-name": ["a", "b"]}).encode()
    yield json.dumps(
        {"model": "demo", "port": 8000, "kv_cache_gib": 1.5, "reserve-core": True, "cors_origin": "*"}
    ).encode()
    for path in sorted(presets().values())[:2]:
        yield path.read_bytes()


def _frames() -> Iterator[bytes]:
    sampling = SamplingParams(temperature=0.7, top_p=0.9, logit_bias={3: 1.0}, suppress=[1], seed=7, logprobs=2)
    init = SlotInit(sampling, prompt_history=[1, 2], output_history=[3])
    plan = SeqPlan(slot=0, start=0, tokens=[1, 2, 3], pages=[0], init=init, sample=True, prompt_logprobs=[2, 3])
    following = SeqPlan(slot=1, start=3, tokens=[], from_previous=True, sample=True)
    yield encode(StepPlan(1, [plan, following], tower=[TowerWork(0, 1, 2, 3)], placed=[PlacedRows(0, 1, 2, 9)]))
    yield encode(StepResult(1, 0, [SeqResult(5, TokenLogprobs(5, -0.5, [5, 6], [-0.5, -1.0]))], 1, 2, 3))
    yield encode(ProfileRequest(1, ceilings=True))
    yield encode(LoadAdapter(1, LoraAdapter(1, "/loras/a", "0" * 64)))
    yield encode(AdapterLoaded(0, 1, 7))
    records = [DiskRecord(0, bytes(32), page=1), DiskRecord(2, bytes(32), snapshot=3, tails=[[4, 5]])]
    for move in (WriteRecords(1, records), ReadRecords(2, records), CancelMove(2), RecordsMoved(0, 2, 1, "checksum")):
        yield encode(move)
    limits = replace(Capacity.of_program(64, 16, 4, 4, 8), window_pages=(3,))
    launch = Launch(0, 1, "m", [[0]], [0], [1], limits, -1, 0, 5.0)
    yield encode(launch)
    looks = {0: RankLook(3, frozenset({7}), {7: ThreadTime("R", 1.0, 2.0)})}
    for message in (
        *(Describe("m"), Claim(2), StartStage([launch], 1, 4096, 9, 64), Mask(3, 1, 1, bytes(8)), End(0.5)),
        *(Described("avx512", Raw(b"\x80"), bytes(32)), Beaten(looks), Failed("signal", "worker 0"), Started([1, 2])),
    ):
        yield encode(launch)[:1] + bytes(encode_message(message)[1])  # a frame begins with the version of messages


def _grammars() -> Iterator[bytes]:
    examples: dict[str, list[object]] = {
        "json_schema": [
            {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}, "required": ["a"]},
            {"$defs": {"x": {"enum": [1, "b", None]}}, "items": {"$ref": "#/$defs/x"}, "minItems": 1},
            {"anyOf": [{"type": "number", "multipleOf": 0.5}, {"pattern": "^a+$"}], "x-guidance": {"whitespace": ""}},
        ],
        "regex": ["[a-z]+(b|c){1,3}", r"\d+\.\d*"],
        "choice": [["a", "b"]],
        "lark": ['start: A "x" | b\nA: /[0-9]+/\nb: A+', 'root ::= "a" [0-9]+ | ws\nws ::= " "*'],
        "structural_tag": [
            {"structures": [{"begin": "<fn=a>", "schema": {"type": "integer"}, "end": "</fn>"}], "triggers": ["<fn="]},
            {"type": "structural_tag", "format": {"type": "sequence", "elements": [
                {"type": "const_string", "value": "a"}, {"type": "regex", "pattern": "[0-9]"}, {"type": "any_text"}]}},
            {"type": "structural_tag", "format": {"type": "tags_with_separator", "separator": ",", "tags": [
                {"type": "tag", "begin": "<", "content": {"type": "json_schema", "json_schema": {}}, "end": ">"}]}},
        ],
    }  # fmt: skip
    for kind, texts in examples.items():
        for text in texts:
            written = text if kind in {"regex", "lark"} else json.dumps(text)
            yield bytes([KINDS.index(kind)]) + str(written).encode()  # type: ignore[arg-type]


def _images() -> Iterator[bytes]:
    for mode in ("1", "LA", "P", "RGB", "RGBA", "I;16"):
        yield in_file(pattern(9, 7, mode), exif=exif(6))
    yield in_file(pattern(9, 7, "P"), transparency=bytes(range(256)))
    yield in_file(pattern(9, 7), save_all=True, append_images=[pattern(9, 7, salt=9)])
    for mode, progressive in (("L", False), ("RGB", True), ("CMYK", False)):
        yield in_file(pattern(9, 7, mode), "JPEG", progressive=progressive, exif=exif(5))
    yield in_file(pattern(9, 7), "MPO", save_all=True, append_images=[pattern(3, 4)])
    for mode, lossless in (("RGB", False), ("RGBA", True)):
        yield in_file(pattern(9, 7, mode), "WEBP", lossless=lossless, exif=exif(8))
    for kind in ("WEBP", "GIF"):
        yield in_file(pattern(9, 7), kind, save_all=True, append_images=[pattern(9, 7, salt=60)])
    yield in_file(pattern(9, 7, "P"), "GIF", transparency=5, interlace=1)


if __name__ == "__main__":
    main()

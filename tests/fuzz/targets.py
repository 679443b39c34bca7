"""Each reader of what others wrote, as a function of bytes: it refuses them in words, or takes them.

What a target raises is a finding.
"""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import prod
from pathlib import Path

import gguf
import numpy as np
from numaserve.server.config.serve import load_config
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits, ImageProblem
from numaserve.server.service.model.sampling_defaults import read_sampling_defaults
from numaserve.server.structured.translate import to_llguidance
from numaserve.server.structured.types import Constraint, ConstraintKind, Limits, UnsupportedGrammar
from numaserve.server.supervisor.agent_messages import (
    decode_from_agent,
    decode_to_agent,
    encode_message,
    own_version,
)
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.files.gguf_metadata import read_metadata
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import ProtocolError, decode_from_worker, decode_to_worker, encode
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.config.sentence_transformers import read_sentence_modules
from numaserve.workers.models.config.torch_file import read_torch_file
from numaserve.workers.models.load import load_model_config, open_model, read_config
from numaserve.workers.weights.checkpoint import check_checkpoint
from numaserve.workers.weights.safetensors_source import SafetensorsSource

from tests.support.image_files import SETTINGS

Target = Callable[[bytes], None]
KINDS: tuple[ConstraintKind, ...] = ("json_schema", "regex", "choice", "lark", "structural_tag")
FOLDER_FILES = (
    *("config.json", "generation_config.json", "model.safetensors.index.json", "modules.json", "1_Pooling/config.json"),
    *("sentence_bert_config.json", "config_sentence_transformers.json"),
    *("preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
)
TEXT_COLUMNS = 32  # of the model whose tower is read
_SPECIAL = {"<s>": 256, "</s>": 257, "<fn": 258}
_LIMITS = Limits()
_IMAGE_LIMITS = ImageLimits(images=1, file_bytes=1 << 20, file_pixels=1 << 16, pixels=4 * SETTINGS.sizes.pixels)


class _Place:
    """Where the file of a run lies."""

    def __init__(self, name: str) -> None:
        folder = tempfile.mkdtemp(prefix="numaserve-fuzz-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.folder = Path(folder)
        self.path = self.folder / name

    def write(self, data: bytes) -> Path:
        """A new file each time: one that is still mapped must not shrink."""
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(data)
        return self.path


def _of_file(name: str, read: Callable[[Path], object]) -> Target:
    place: list[_Place] = []

    def run(data: bytes) -> None:
        if not place:
            place.append(_Place(name))
        with suppress(OperatorError):
            read(place[0].write(data))

    return run


def _gguf(path: Path) -> None:
    with suppress(OperatorError):
        read_metadata(path)
    files = open_model(path)
    check_checkpoint(files, read_config(files))


def _tower(path: Path) -> None:
    """The file of a tower, next to a model that it may belong to."""
    model = path.with_name("model.gguf")
    if not model.exists():
        _write_text_model(model)
    files = open_model(model)
    check_checkpoint(files, read_config(files))


def _write_text_model(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(TEXT_COLUMNS)
    writer.add_block_count(1)
    writer.add_feed_forward_length(TEXT_COLUMNS)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "<image>", "</s>", "[IMG]"])
    square = dict.fromkeys(
        ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), TEXT_COLUMNS
    )
    vectors = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")
    shapes = {"token_embd": (4, TEXT_COLUMNS), **dict.fromkeys(vectors, (TEXT_COLUMNS,))}
    for name, shape in (shapes | {f"blk.0.{name}": (rows, TEXT_COLUMNS) for name, rows in square.items()}).items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _safetensors(path: Path) -> None:
    source = SafetensorsSource(SafetensorsFiles(path.parent))
    for name in source.names():
        with suppress(OperatorError):  # a type that is not known
            tensor = source.part(name)
            bits = {"f32": 32, "i32": 32, "i64": 64, "bf16": 16, "f16": 16}.get(tensor.dtype, 8)
            assert tensor.data.nbytes * 8 == prod(tensor.shape) * bits


def _folder(path: Path) -> None:
    """The small files of a model's folder, which lie in one as an object: names, and what is in them."""
    folder = path.parent / "model"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1_Pooling").mkdir(parents=True)
    try:
        files = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    for name in FOLDER_FILES:
        if isinstance(files, dict) and name in files:
            (folder / name).write_text(json.dumps(files[name]))
    for read in (
        load_model_config,
        partial(read_sampling_defaults, "m"),
        read_sentence_modules,
        lambda folder: SafetensorsSource(SafetensorsFiles(folder)),
        load_tokenizer,
    ):
        with suppress(OperatorError):
            read(folder)


def _frame(data: bytes) -> None:
    """A frame that is taken is the one that would be sent."""
    for decode in (decode_to_worker, decode_from_worker):
        try:
            message = decode(data)
        except ProtocolError:
            continue
        assert encode(decode(encode(message))) == encode(message)
    for from_host in (decode_to_agent, decode_from_agent):
        try:
            between_hosts = from_host([own_version().encode(), data[1:]])
        except ProtocolError:
            continue
        sent = encode_message(between_hosts)
        assert encode_message(from_host(list(map(bytes, sent)))) == sent


def _grammar(data: bytes) -> None:
    text = data[1:].decode(errors="replace")
    with suppress(UnsupportedGrammar):
        to_llguidance(Constraint(KINDS[data[0] % len(KINDS)] if data else "regex", text), _SPECIAL, _LIMITS)


def _image(data: bytes) -> None:
    """An image that is taken has all its tiles, and those whole."""
    with suppress(ImageProblem):
        layout, tiles = to_tiles(data, SETTINGS, _IMAGE_LIMITS)
        assert [len(tile) for tile in tiles] == [SETTINGS.tile_bytes] * (layout.rows * layout.cols + 1)
        assert layout.sizes[-1].pixels <= _IMAGE_LIMITS.pixels


TARGETS: Mapping[str, Target] = {
    "gguf": _of_file("model.gguf", _gguf),
    "mmproj": _of_file("mmproj.gguf", _tower),
    "safetensors": _of_file("model.safetensors", _safetensors),
    "torch": _of_file("sparse_linear.pt", read_torch_file),
    "model-config": _of_file("config.json", lambda path: load_model_config(path.parent)),
    "model-folder": _of_file("files.json", _folder),
    "settings": _of_file("settings.yaml", lambda path: load_config({}, path)),
    "frames": _frame,
    "grammars": _grammar,
    "images": _image,
}

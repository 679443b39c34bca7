"""A checkpoint is data from outside: nothing in it runs, and nothing in it makes the loader read beyond its files."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config import safetensors_files
from numaserve.workers.models.config.gguf_file import open_gguf
from numaserve.workers.models.config.gguf_names import GgufNames
from numaserve.workers.models.config.gguf_parts import open_gguf_model
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.safetensors_source import SafetensorsSource
from numaserve.workers.weights.tensors import check_tensors

from tests.support import checkpoints
from tests.support.configured import configured
from tests.support.gguf_files import finish

CASE = "llama-untied"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.save(checkpoints.random_model(CASE), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return checkpoints.save_gguf(checkpoints.random_model("qwen2"), path, "Q8_0").read_bytes()


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return (exec, ("raise SystemExit('the pickle ran')",))


def test_code_named_by_auto_map_is_never_run(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('the code ran')")
    assert load_model_config(tmp_path) == load_model_config(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_a_pickle_is_refused_without_being_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(OperatorError, match=f"{name}.*convert the weights to safetensors"):
        SafetensorsSource(SafetensorsFiles(tmp_path))


def test_a_pickle_that_is_called_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(OperatorError, match="not a valid safetensors file"):
        SafetensorsSource(SafetensorsFiles(tmp_path))


def safetensors_bytes(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10**6) + b"{}",
        safetensors_bytes(b"not json"),
        safetensors_bytes(b"[" * 50_000),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, b"\0" * 8),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [4], "data_offsets": [2**60, 2**60 + 16]}}, b"\0" * 16),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}, b"\0" * 16),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 16]}}, b"\0" * 16),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 16]}}, b"\0" * 16),
        safetensors_bytes({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}, b"\0" * 16),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(OperatorError, match="not a valid safetensors file"):
        SafetensorsSource(SafetensorsFiles(tmp_path))


_ONE = b'{"dtype":"F32","shape":[],"data_offsets":[0,4]}'


def test_a_tensor_that_is_there_twice_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(b'{"a":%b,"a":%b}' % (_ONE, _ONE), b"\0" * 4))
    with pytest.raises(OperatorError, match=r"model.safetensors: not a valid .* \(an object has the name 'a' twice"):
        SafetensorsSource(SafetensorsFiles(tmp_path))


def test_a_tensor_that_two_files_have_is_refused_by_name(tmp_path: Path) -> None:
    names = [f"model-{number}.safetensors" for number in (1, 2)]
    for name in names:
        (tmp_path / name).write_bytes(safetensors_bytes(b'{"a":%b}' % _ONE, b"\0" * 4))
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ab", names, strict=True))})
    )
    with pytest.raises(OperatorError, match=r"tensor 'a' is in both .*model-1.safetensors and model-2.safetensors;"):
        SafetensorsSource(SafetensorsFiles(tmp_path))


@pytest.mark.parametrize(
    ("header", "reason"),
    [  # made in the test: each process that collects tests has this list
        (
            lambda: b"{" + b",".join(b'"%d":%b' % (each, _ONE) for each in range(500_000)) + b"}",
            "at least 1999999 values",
        ),
        (
            lambda: b'{"__metadata__":{"a":"' + b"x" * (33 << 20) + b'"}}',
            "the header has 3.* bytes \\(limit 33554432\\)",
        ),
    ],
    ids=["values", "bytes"],
)
def test_a_header_of_too_much_is_refused_before_it_is_parsed(
    header: Callable[[], bytes], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*_: object, **_options: object) -> None:
        raise AssertionError("it is parsed")

    monkeypatch.setattr(safetensors_files, "parse_json", parse)
    monkeypatch.setattr(safetensors_files, "safe_open", parse)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header(), b"\0" * 4))
    with pytest.raises(OperatorError, match=reason):
        SafetensorsSource(SafetensorsFiles(tmp_path))


def test_a_dtype_that_cannot_be_packed_is_named(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, b"\0" * 4))
    with pytest.raises(OperatorError, match="tensor a is F8_E4M3"):
        SafetensorsSource(SafetensorsFiles(tmp_path)).tensor("a")


@pytest.mark.parametrize(
    "name",
    ["../model.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "..", "", "pytorch_model.bin", 7, None],
)
def test_an_index_that_points_elsewhere_is_refused(name: object, folder: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for target in (tmp_path, inner):
        (target / "pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(OperatorError, match="in weight_map is not a safetensors file in the same folder"):
        SafetensorsSource(SafetensorsFiles(inner))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100_000])
def test_an_index_that_is_no_index_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(OperatorError, match=r"index\.json"):
        SafetensorsSource(SafetensorsFiles(tmp_path))


def test_a_file_that_the_index_names_and_the_folder_lacks_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(OperatorError, match=r"model-00001-of-00002\.safetensors: missing"):
        SafetensorsSource(SafetensorsFiles(tmp_path))


@pytest.mark.parametrize("end", [0, 3, 8, 24, 40, 100, 300, 700, 1500, -100, -1000])
def test_a_gguf_file_cut_short_anywhere_is_refused(end: int, gguf_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf_bytes[:end])
    with pytest.raises(OperatorError, match=r"cut\.gguf"):
        open_gguf(path)


def metadata_gguf(*entries: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries) + b"\0" * 64


def entry(kind: int, payload: bytes, key: bytes = b"k") -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + payload


STRING, ARRAY, UINT8 = 8, 9, 0


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63),
        b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0),
        b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        b"GGUX" + struct.pack("<IQQ", 3, 0, 0),
        metadata_gguf(entry(77, b"\0" * 8)),
        metadata_gguf(entry(STRING, struct.pack("<Q", 2**62))),
        metadata_gguf(entry(ARRAY, struct.pack("<IQ", UINT8, 2**23))),
        metadata_gguf(entry(ARRAY, struct.pack("<IQ", UINT8, 2**62))),
        metadata_gguf(entry(ARRAY, struct.pack("<IQ", STRING, 1000))),
        metadata_gguf(entry(ARRAY, struct.pack("<IQQ", STRING, 2, 2**62))),
        metadata_gguf(entry(ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000)),
        metadata_gguf(entry(UINT8, b"\1"), entry(UINT8, b"\2")),
        metadata_gguf(entry(UINT8, b"\1", key=b"\xff\xfe")),
    ],
)
def test_gguf_metadata_that_lies_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lie.gguf"
    path.write_bytes(content)
    with pytest.raises(OperatorError, match="not a valid GGUF file"):
        open_gguf(path)


def tensor_gguf(dims: list[int], kind: int, offset: int) -> bytes:
    info = struct.pack("<Q", 1) + b"t" + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info + struct.pack("<IQ", kind, offset)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + b"\0" * 256


@pytest.mark.parametrize(
    ("dims", "kind", "offset"),
    [
        ([64], 0, 32),
        ([64], 0, 2**40),
        ([64], 0, 2**64 - 32),
        ([2**32, 2**32], 0, 0),
        ([2**63, 2], 0, 0),
        ([10**9], 8, 0),
        ([33], 8, 0),
    ],
)
def test_a_gguf_tensor_that_does_not_fit_the_file_is_refused(
    dims: list[int], kind: int, offset: int, tmp_path: Path
) -> None:
    path = tmp_path / "lie.gguf"
    path.write_bytes(tensor_gguf(dims, kind, offset))
    with pytest.raises(OperatorError, match="not a valid GGUF file"):
        open_gguf(path)


@pytest.mark.parametrize("kind", [4, 9999, 2**32 - 1])
def test_a_gguf_tensor_of_an_unknown_type_is_not_supported(kind: int, tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(tensor_gguf([64], kind, 0))
    with pytest.raises(OperatorError, match=f"tensor 't' has GGML type {kind}, which is not supported"):
        open_gguf(path)


def test_a_gguf_tensor_within_the_file_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "sound.gguf"
    path.write_bytes(tensor_gguf([64], 0, 0))
    assert open_gguf(path).tensors[0].n_bytes == 256


@pytest.mark.parametrize("kind", ["IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"])
def test_a_gguf_quantization_that_is_not_supported_is_named_with_its_tensor(kind: str, tmp_path: Path) -> None:
    qtype = gguf.GGMLQuantizationType[kind]
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    raw = np.zeros((2, gguf.GGML_QUANT_SIZES[qtype][1]), np.uint8)
    writer.add_tensor("blk.0.attn_q.weight", raw, raw_dtype=qtype)
    finish(writer)
    source = open_source(open_model(path), configured())
    with pytest.raises(
        OperatorError, match=rf"blk\.0\.attn_q\.weight has type {kind}; supported types: F32, .*IQ3_XXS"
    ):
        source.tensor("model.layers.0.self_attn.q_proj.weight")


def test_a_part_of_a_divided_gguf_file_that_does_not_say_which_one_it_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00002.gguf"
    uint16 = 2
    path.write_bytes(metadata_gguf(entry(uint16, struct.pack("<H", 2), key=b"split.count")))
    with pytest.raises(OperatorError, match="one of 2 parts of a model; give the first part"):
        open_gguf_model(path)


def test_experts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    model, counts = checkpoints.random_model(CASE), {"expert_count": 8, "expert_used_count": 2}
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", changes=counts)
    config = load_model_config(path)
    with pytest.raises(OperatorError, match=r"lacks .*model\.layers\.0\.block_sparse_moe\.experts\.0\.w1"):
        check_tensors(open_source(open_model(path), config), config)


def test_a_tensor_of_very_many_experts_is_no_expert() -> None:
    name = "blk.0.ffn_up_exps.weight"
    names = GgufNames(configured("Qwen3MoeForCausalLM", num_experts=8).decoder, 0)
    experts = [f"model.layers.0.mlp.experts.{unit}.up_proj.weight" for unit in range(1024)]
    assert names.find(name, (1024, 5, 7)) == (experts, (5, 7))
    assert names.find(name, (2**40, 1, 1)) == ([name], (2**40, 1, 1))
    assert names.find(name, (8, 1)) == ([name], (8, 1))

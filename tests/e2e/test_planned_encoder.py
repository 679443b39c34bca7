"""`numaserve plan` for an encoder: a GGUF file is planned as the folder that it is made from."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.server.cli.main import main

from tests.support import encoders, gguf_encoders


def planned(model: Path, folder: Path, *options: str) -> dict[str, Any]:
    """The estimate, without the name of the model."""
    file = folder / "plan.jsonl"
    file.unlink(missing_ok=True)
    with pytest.raises(SystemExit) as end:
        main(["plan", str(model), "--host", "6980p", *options, "--json", str(file)])
    assert end.value.code == 0
    made: dict[str, Any] = json.loads(file.read_text())
    return {key: value for key, value in made.items() if key != "model"}


@pytest.mark.parametrize("name", ["bert", "modernbert", "embedding-gemma"])
def test_a_gguf_file_is_planned_as_its_folder(name: str, tmp_path: Path) -> None:
    path = gguf_encoders.save_gguf(name, encoders.random_encoder(name), tmp_path)
    found, expected = (planned(model, tmp_path, "--input-len", "64") for model in (path, tmp_path))
    assert found == expected
    assert found["decode"] is None


def test_the_file_of_a_cross_encoder_is_planned_with_its_head(tmp_path: Path) -> None:
    path = gguf_encoders.save_gguf("xlm-roberta", encoders.random_classifier("xlm-roberta"), tmp_path)
    found, expected = planned(path, tmp_path), planned(tmp_path, tmp_path)
    # The folder has two more positions, which shift what each rank has of them.
    assert found["ttft_s"] == pytest.approx(expected["ttft_s"], rel=1e-3)
    assert found["memory"] == expected["memory"]
    calls = {cost["name"]: cost["calls"] for cost in found["prefill"]["costs"]}
    assert calls["linear"] == 3 + 2


def test_a_quantized_file_has_smaller_weights(tmp_path: Path) -> None:
    sizes = {"hidden_size": 96, "intermediate_size": 160}
    folders = {kind: tmp_path / kind for kind in ("BF16", "Q8_0")}
    weights = []
    for kind, folder in folders.items():
        folder.mkdir()
        path = gguf_encoders.save_gguf("bert", encoders.random_encoder("bert", **sizes), folder, kind)
        weights.append(sum(node["weights"] for node in planned(path, tmp_path)["memory"]))
    assert weights[1] < 0.9 * weights[0]


def test_a_prompt_is_at_most_as_long_as_the_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = encoders.save("bert", encoders.random_encoder("bert"), tmp_path, "cls")
    planned(folder, tmp_path)
    assert f"1 x {encoders.POSITIONS} tokens" in " ".join(capsys.readouterr().out.split())
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    planned(folder, tmp_path)
    assert "1 x 40 tokens" in " ".join(capsys.readouterr().out.split())

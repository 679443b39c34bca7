"""The programs of docs/examples/, run as the tutorials run them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from PIL import Image

from tests.documentation.parts import ROOT
from tests.support import checkpoints, encoders, grid_vision
from tests.support.chat_model import write_model
from tests.support.demo import needs_demo
from tests.support.real_server import RealServer
from tests.support.tokenizer_builders import wordpiece_backend

pytestmark = [needs_demo, pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")]

EXAMPLES = ROOT / "docs" / "examples"
KEY = "sk-tutorial-0f41c9e7a2d84b"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """The server of the production tutorial: two ranks, and a key for each client."""
    keys = tmp_path_factory.mktemp("keys") / "api-keys"
    keys.touch(mode=0o600)
    keys.write_text(f"{KEY} name=tutorial concurrent=8\n")
    with RealServer("--config", str(EXAMPLES / "production.yaml"), "--api-key-file", str(keys)) as server:
        yield server


def output(server: RealServer, program: str, *arguments: str) -> list[str]:
    """Return the lines that a program prints."""
    environment = os.environ | {"NUMASERVE_URL": server.url, "NUMASERVE_KEY": KEY}
    command = [sys.executable, str(EXAMPLES / program), *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_the_first_answer_is_the_same_as_a_stream(server: RealServer) -> None:
    assert output(server, "first_answer.py") == [
        "The capital of France is Paris.",
        "8 tokens",
        "The capital of France is Paris.",
    ]


def test_the_agent_calls_a_tool_with_valid_arguments_and_answers(server: RealServer) -> None:
    call, *answer = output(server, "agent.py")
    # Which tool the small model chooses depends on the rounding of the instruction set.
    called = re.fullmatch(r'(count|price)\({"item": "(wrench|hammer|screwdriver)"}\) -> (.+)', call)
    assert called
    assert "in stock" in called[3] if called[1] == "count" else "euros" in called[3]
    assert any(answer)


def test_the_extraction_answers_with_records_of_the_schema(server: RealServer) -> None:
    records = [json.loads(line) for line in output(server, "extraction.py")]
    assert records == [
        {"name": "Ada Lindgren", "city": "Malmö", "age": 36},
        {"name": "Rui Alves", "city": "Porto", "age": 51},
    ]


def test_a_stream_survives_the_death_of_a_worker_with_the_same_bits(server: RealServer) -> None:
    killed, same, new = output(server, "outage.py")
    assert killed.endswith("after 10 chunks")
    assert (same, new) == ("the same answer: True", "new workers: True")


def test_the_search_answers_with_the_passages_that_it_read(tmp_path: Path) -> None:
    """Three tiny models: the two encoders are loaded in turn, where there are two cores."""
    files = yaml.safe_load((EXAMPLES / "search.yaml").read_text())
    folders = {"answers": write_model(tmp_path), **{name: tmp_path / name for name in ("embeddings", "reranker")}}
    # A random model may write 300 characters as escapes of twelve bytes each, a token for each byte.
    config = folders["answers"] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 8192}))
    encoders.save("bert", encoders.random_encoder("bert"), folders["embeddings"], "cls")
    encoders.save("bert", encoders.random_classifier("bert"), folders["reranker"])
    for name in ("embeddings", "reranker"):
        wordpiece_backend().save(str(folders[name] / "tokenizer.json"))
    first, second = sorted(os.sched_getaffinity(0))[:2]
    for name, model in files["models"].items():
        small = {"kv_cache_gib": 0.02, "memory": "1GiB", "weights_cache_gib": 0, "load": "request", "pinned": False}
        model.update(small, model=str(folders[name]), cores=first if name == "answers" else second)
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(files))
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "foxes.md").write_text("The quick brown fox jumps.\n\nIt is over the lazy dogs.\n")
    (texts / "spaces.txt").write_text("leading and inner spaces")
    with RealServer(several=tmp_path / "models.yaml") as several:
        lines = output(several, "search.py", str(texts), "the quick fox", "inner spaces")
    assert lines[:2] == ["3 passages", "the quick fox"]
    assert "inner spaces" in lines
    sources = re.findall(r"^  \[(foxes\.md|spaces\.txt)\] (.+)$", "\n".join(lines), re.MULTILINE)
    passages = {*(texts / "foxes.md").read_text().strip().split("\n\n"), "leading and inner spaces"}
    assert len(sources) >= 2
    assert {text for _, text in sources} <= passages


def test_scanned_pages_become_records_of_the_schema(tmp_path: Path) -> None:
    """A tiny random model reads nothing: the records have the form alone."""
    model = checkpoints.build(grid_vision.CASES["qwen3_vl"]())
    folder, pages = grid_vision.save_served(model, tmp_path / "model"), tmp_path / "receipts"
    # A random model may write ten items, and each character as an escape of twelve bytes, a token for each byte.
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 16384
    (folder / "config.json").write_text(json.dumps(config))
    with RealServer("--image-memory-gib", "0.05", model=str(folder)) as server:
        assert output(server, "scans.py", str(pages)) == []
        lines = [json.loads(line) for line in output(server, "pages.py", str(pages))]
    assert [line.pop("page") for line in lines] == ["page-1.png", "page-2.png", "page-3.png"]
    for line in lines:
        assert line.keys() == {"shop", "date", "items", "total"}
        assert all(item.keys() == {"name", "price"} for item in line["items"])
        prices = [line["total"], *(item["price"] for item in line["items"])]
        assert all(re.fullmatch(r"[0-9]{1,5}\.[0-9]{2}", price) for price in prices)
    for path in pages.iterdir():
        with Image.open(path) as page:
            assert (page.size, page.mode) == ((700, 900), "L")


def test_every_program_is_run() -> None:
    tested = Path(__file__).read_text()
    assert all(f'"{path.name}"' in tested for path in EXAMPLES.iterdir() if path.is_file())

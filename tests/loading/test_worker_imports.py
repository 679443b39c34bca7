import subprocess
import sys
from pathlib import Path

from tests.support import checkpoints

LOAD = """
import sys
from pathlib import Path
from numaserve.workers.process import main
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.cache.key import look_at
from numaserve.workers.weights.checkpoint import open_source
path = Path(sys.argv[1])
look_at(path)
source = open_source(open_model(path), load_model_config(path))
assert all(len(source.tensor(name).data) for name in source.names())
print(*{"torch", "transformers", "gguf"}.intersection(name.partition(".")[0] for name in sys.modules))
"""


def imported_for(model: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", LOAD, str(model)], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_worker_reads_bf16_tensors_without_importing_torch_or_what_reads_gguf_files(tmp_path: Path) -> None:
    folder = checkpoints.save(checkpoints.random_model("llama-tied"), tmp_path)
    assert imported_for(folder) == []


def test_it_reads_gguf_files_without_importing_torch(tmp_path: Path) -> None:
    file = checkpoints.save_gguf(checkpoints.random_model("llama-tied"), tmp_path / "model.gguf", "Q8_0")
    assert imported_for(file) == ["gguf"]

import subprocess
import sys
from pathlib import Path

from tests.support import checkpoints

LOAD = """
import sys
from pathlib import Path
from numaserve.workers.process import main
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.checkpoint import open_source
path = Path(sys.argv[1])
source = open_source(open_model(path), load_model_config(path))
assert all(len(source.tensor(name).data) for name in source.names())
print(sum(name.partition(".")[0] in {"torch", "transformers"} for name in sys.modules))
"""


def test_a_worker_reads_bf16_tensors_without_importing_torch(tmp_path: Path) -> None:
    folder = checkpoints.save(checkpoints.random_model("llama-tied"), tmp_path)
    done = subprocess.run([sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"

"""Prints what each published layout loses on the demo model: `python -m tests.e2e.accuracy_table [LAYOUT ...]`.

Teacher-forced on 500 tokens of text. The demo's weights are those of a Q4_1 file, expanded to bf16: rounding them to
Q4_1 once more loses little, and to other formats of 4 bits what is lost between two grids. GGUF files keep the
embedding, which is the output head too, in Q8_0, as the demo's does.
"""

import copy
import logging
import sys
import tempfile
from pathlib import Path

import torch
import transformers as hf
from numaserve.server.tokenizer import load_tokenizer
from numaserve.workers.interface.settings import ActivationDtype, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.program.handles import INTEGER_GROUPS

from tests.support import checkpoints
from tests.support.demo import ALICE, demo_model
from tests.support.parity import POSITIONS, Distance, Texts, served_scores, transformers_scores
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import save_published


def _demo() -> tuple[hf.PreTrainedModel, Texts]:
    path = demo_model()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = hf.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16)
    del model.config.quantization_config  # the file's own, which saved models would carry
    wide = hf.AutoModelForCausalLM.from_config(model.config, dtype=torch.float32).eval()
    wide.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    return wide, [load_tokenizer(path).encode(ALICE)[: POSITIONS + 1]]


def _cells(distance: Distance) -> str:
    return f"{distance.mean_delta:.4f} | {1 - distance.disagreements / distance.positions:.1%}"


def main(names: list[str]) -> None:
    """Print the table, of all layouts where `names` is empty."""
    model, texts = _demo()
    whole = transformers_scores(model, texts)
    narrow = Distance.between(transformers_scores(copy.deepcopy(model).to(torch.bfloat16), texts), whole)
    print("| published as | kept as | activations | MiB | mean abs Δlogprob, bf16 | top-1 | own weights | top-1 |")
    print("|---|---|---|---|---|---|---|---|")
    print(f"| transformers, bf16 | bf16 | bf16 | | {_cells(narrow)} | | |")
    for name in names or ["bf16", *LAYOUTS, *checkpoints.GGUF_BLOCKS]:
        with tempfile.TemporaryDirectory() as folder:
            reference = copy.deepcopy(model)
            if name in LAYOUTS:
                path = save_published(reference, Path(folder), name)
            elif name in checkpoints.GGUF_BLOCKS:
                path = checkpoints.save_gguf(
                    reference, Path(folder) / "model.gguf", name, embedding="Q8_0", expanded=False
                )
            else:
                path = checkpoints.save(reference, Path(folder))
            config = load_model_config(path)
            kept = sorted({each.native for each in config.stored.values()}) or ["bf16"]
            size = config.partition([1]).ranks[0].weight_bytes() / 2**20
            dequantized = transformers_scores(reference, texts)
            activations: list[ActivationDtype] = ["bf16", "int8"] if INTEGER_GROUPS.intersection(kept) else ["bf16"]
            for each in activations:
                scores = served_scores(path, 1, texts, WeightFormats(activations=each))
                own = Distance.between(scores, dequantized)
                cells = f"{_cells(Distance.between(scores, whole))} | {_cells(own)}"
                print(f"| {name} | {', '.join(kept)} | {each} | {size:.0f} | {cells} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

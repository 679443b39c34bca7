"""The classification head of an encoder, as its files describe it."""

from pathlib import Path

from numaserve.server.generation.classifier import Activation
from numaserve.server.generation.purpose import Classifies
from numaserve.workers.interface.files import is_there, read_json
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.spec import ModelConfig

# Classes of torch that CrossEncoder of sentence-transformers may name, by the last part of the name.
_ACTIVATIONS: dict[str, Activation] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}


def read_classifier(folder: Path, model: ModelConfig) -> Classifies:
    """Return the labels and the activation of the `model` in `folder`.

    Scores have the activation that config.json declares for CrossEncoder, by default a sigmoid for one label and none
    for several, as there. Raises `OperatorError` for another activation.
    """
    path = folder / "config.json"
    fields = Fields(read_json(path) if is_there(path) else {}, str(path))
    declared = fields.child("sentence_transformers").text("activation_fn", "")
    name = declared or fields.text("sbert_ce_default_activation_function", "")
    if not name:
        return Classifies(model.labels, "sigmoid" if len(model.labels) == 1 else "none")
    kind = Fields({"activation_fn": name.rpartition(".")[2]}, str(path))
    return Classifies(model.labels, kind.choice("activation_fn", _ACTIVATIONS))

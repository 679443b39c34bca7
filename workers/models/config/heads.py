"""Fields of config.json that a model with a head for some task has, and classification heads after the form of BERT."""

from collections.abc import Callable

from numaserve.workers.layers.dense import Dense
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.spec import ModelConfig

# Ends of the names of such architectures.
CLASSIFIES = "ForSequenceClassification"
MASKED = "ForMaskedLM"
_MAX_LABELS = 1 << 16
GGUF_DENSE, GGUF_LOGITS = "cls", "cls.output"  # the two layers of a head in GGUF files


def read_labels(fields: Fields) -> tuple[str, ...]:
    """Return the names of the labels, in the order of their logits.

    Raises `OperatorError` for ids that are not 0, 1, ... As in transformers, there are two labels unless the file says
    otherwise.
    """
    named = fields.child("id2label")
    count = len(named.values) or fields.integer("num_labels", 1, _MAX_LABELS, 2)
    if not named.values:
        return tuple(f"LABEL_{index}" for index in range(count))
    if count > _MAX_LABELS or set(named.values) != {str(index) for index in range(count)}:
        raise fields.error(f"id2label must name the labels 0, 1, ..., and at most {_MAX_LABELS} of them")
    return tuple(named.text(str(index)) for index in range(count))


def bert_head(hidden: int, labels: int) -> tuple[Dense, Dense]:
    """Return the layers that follow the first token in BERT: the pooler, `hidden` columns wide, and the logits."""
    return (
        Dense("pooler.dense", hidden, hidden, "tanh", gguf=GGUF_DENSE),
        Dense("classifier", hidden, labels, gguf=GGUF_LOGITS),
    )


def with_head(
    config: ModelConfig,
    fields: Fields,
    architecture: str,
    head: Callable[[int, int], tuple[Dense, ...]] = bert_head,
) -> ModelConfig:
    """Return the encoder with the layers `head(hidden size, labels)` if the `architecture` classifies."""
    if not architecture.endswith(CLASSIFIES):
        return config
    labels = read_labels(fields)
    return config.classifying("cls", head(config.hidden_size, len(labels)), labels)

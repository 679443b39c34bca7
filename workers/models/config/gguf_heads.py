"""Numbers of single layers in the metadata of GGUF files of models in which only some layers have attention."""

from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.huggingface import MAX_LAYERS

KV_HEADS = "attention.head_count_kv"
_MOST = 2**20


def heads_values(metadata: Fields, other: str) -> dict[str, object]:
    """Return the fields of config.json for layers with attention, and for `other` ones, which have no KV heads. Raises
    `OperatorError` for a file that does not state the number of KV heads of each layer."""
    heads = of_layers(metadata, KV_HEADS)
    return {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if each else other for each in heads],
    }


def of_layers(metadata: Fields, key: str, low: int = 0) -> list[int]:
    """Return the number of each layer in `key`, at least `low`. A single number holds for all layers.

    Raises `OperatorError` if a number is missing or out of range, or if all are 0.
    """
    name = metadata.text("general.architecture")
    layers = metadata.integer(f"{name}.block_count", 1, MAX_LAYERS)
    key = f"{name}.{key}"
    if isinstance(metadata.values.get(key), list):
        found = list(metadata.integers(key, low, _MOST))
    else:
        found = [metadata.integer(key, low, _MOST)] * layers
    if len(found) != layers or not any(found):
        raise metadata.error(f"{key} must be a list with a number for each of the {layers} layers")
    return found

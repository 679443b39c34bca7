"""The settings of transformers' image processors, as the folder of a checkpoint has them."""

from pathlib import Path

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import is_there, read_json
from numaserve.workers.interface.images import Channels
from numaserve.workers.models.config.fields import Fields

_FILE, _WHOLE_FILE, _NESTED = "preprocessor_config.json", "processor_config.json", "image_processor"
_FILTERS = 6  # of Pillow


def read_image_processor(folder: Path) -> Fields:
    """Return the settings: those in the processor's whole file, which transformers 5 writes, or in a file of their own.
    Raises `OperatorError` where neither exists or can be read."""
    whole = folder / _WHOLE_FILE
    if is_there(whole):
        fields = Fields(read_json(whole), str(whole))
        if fields.has(_NESTED):
            return fields.child(_NESTED)
    path = folder / _FILE
    if not is_there(path):
        raise OperatorError(f"{path}: missing; a model that takes images needs it. Download the model again")
    return Fields(read_json(path), str(path))


def read_filter(processor: Fields, default: int) -> int:
    """Return Pillow's number of the filter with which images are resized."""
    return processor.integer("resample", 0, _FILTERS - 1, default)


def read_channels(processor: Fields, key: str, default: float) -> Channels:
    """Return a number for each channel; one number stands for all of them."""
    if not processor.has(key):
        return default, default, default
    if not isinstance(processor.values[key], list):
        value = processor.number(key, -1e3, 1e3)
        return value, value, value
    red, green, blue = processor.numbers(key, 3, -1e3, 1e3)
    return red, green, blue

"""The settings of transformers' image processors, as the folder of a checkpoint has them."""

from pathlib import Path

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import is_there, read_json
from numaserve.workers.interface.images import Channels
from numaserve.workers.models.config.fields import Fields

_FILE, _WHOLE_FILE, _NESTED = "preprocessor_config.json", "processor_config.json", "image_processor"
_FILTERS = 6  # of Pillow
_MOST = 1e3


def read_image_processor(folder: Path, *, needed: bool = True) -> Fields:
    """Return the settings: those in the processor's whole file, which transformers 5 writes, or in a file of their own.
    Raises `OperatorError` where one cannot be read, or neither exists and they are `needed`."""
    whole = folder / _WHOLE_FILE
    if is_there(whole):
        fields = Fields(read_json(whole), str(whole))
        if fields.has(_NESTED):
            return fields.child(_NESTED)
    path = folder / _FILE
    if not is_there(path):
        if not needed:
            return Fields({}, str(path))
        raise OperatorError(f"{path}: missing; a model that takes images needs it. Download the model again")
    return Fields(read_json(path), str(path))


def read_filter(processor: Fields, default: int) -> int:
    """Return Pillow's number of the filter with which images are resized."""
    return processor.integer("resample", 0, _FILTERS - 1, default)


def read_channels(processor: Fields, key: str, low: float, default: float) -> Channels:
    """Return a number of at least `low` for each channel; one number stands for all of them."""
    if isinstance(processor.values.get(key), list):
        red, green, blue = processor.numbers(key, 3, low, _MOST)
        return red, green, blue
    value = processor.number(key, low, _MOST, default)
    return value, value, value

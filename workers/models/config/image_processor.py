"""The settings of transformers' image processors, as the folder of a checkpoint has them."""

from pathlib import Path
from typing import Literal

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import is_there, read_json
from numaserve.workers.interface.images import Channels
from numaserve.workers.models.config.fields import Fields

_FILE, _WHOLE_FILE, _NESTED = "preprocessor_config.json", "processor_config.json", "image_processor"
_FILTERS = 6  # of Pillow
_MOST = 1e3
_LEAST = {"image_mean": -_MOST, "image_std": 1e-3}
_STEPS = ("do_convert_rgb", "do_resize", "do_rescale")
_HALF = 0.5
# Channels as in CLIP: some classes of transformers have these values where settings have none.
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


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


def check_steps(processor: Fields, *, normalizes: bool = True) -> None:
    """Raise `OperatorError` for settings that leave out a step from a file to the values of pixels, or, unless the
    processor `normalizes`, have one more."""
    for needed in _STEPS:
        processor.refuse(needed, True)
    processor.refuse("do_normalize", normalizes)


def read_rescale(processor: Fields) -> float:
    """Return the factor of the bytes of pixels."""
    return processor.number("rescale_factor", 1e-9, 1e3, 1 / 255)


def read_channels(processor: Fields, key: Literal["image_mean", "image_std"], default: float = _HALF) -> Channels:
    """Return a number for each channel; one number stands for all of them."""
    low = _LEAST[key]
    if isinstance(processor.values.get(key), list):
        red, green, blue = processor.numbers(key, 3, low, _MOST)
        return red, green, blue
    value = processor.number(key, low, _MOST, default)
    return value, value, value

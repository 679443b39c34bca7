"""The sampling that a model's authors recommend, from its generation_config.json or from a file of the package."""

from pathlib import Path

from numaserve.configs import generation_configs
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.surfaces.openai.sampling_fields import SamplingFields
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import is_there, read_json
from pydantic import ValidationError

# Without `do_sample`, which other servers ignore too: many files say false only by default, and a client that wants
# greedy sampling sets temperature 0.
_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def read_sampling_defaults(argument: str, model: Path) -> Sampling:
    """Return the sampling fields of the model that `argument` named and that was found at `model`.

    A GGUF file, or a folder without generation_config.json, sets none unless the package has a file for the model.
    Raises `OperatorError` for a file that cannot be read, and for values that requests may not have either.
    """
    path = _file_of(argument, model)
    if path is None:
        return Sampling()
    values = read_json(path)
    try:
        return SamplingFields.model_validate({key: values[key] for key in _KEYS if key in values}).sampling()
    except ValidationError as error:
        first = error.errors()[0]
        raise OperatorError(
            f"{path} cannot be used: {first['loc'][0]} is {str(first['input'])[:80]}: {first['msg']}. Correct the "
            "file, or set --generation-config none"
        ) from None


def _file_of(argument: str, model: Path) -> Path | None:
    own = model / "generation_config.json"
    return own if model.is_dir() and is_there(own) else generation_configs().get(argument)

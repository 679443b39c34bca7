"""The configuration in a YAML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from numaserve.configs import presets
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import SETTINGS_BYTES, is_there, read_text

# The names of these keys in other servers, accepted on the command line and in the file.
ALIASES = {
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "max_model_len": "context_length",
    "max_num_seqs": "max_running_requests",
    "lora_modules": "lora",
    "loras": "lora",
}


def read_config_file(file: Path) -> dict[str, Any]:
    """Return the values of `file`, or of the shipped preset of that name, by key. Raises `OperatorError` (one line)."""
    path = _file_or_preset(file)
    if not is_there(path):
        raise OperatorError(
            f"the configuration file {file} does not exist: name an existing file or a preset ({', '.join(presets())})"
        )
    try:
        loaded = yaml.safe_load(read_text(path, SETTINGS_BYTES))
    except (yaml.YAMLError, RecursionError) as error:
        raise OperatorError(f"{file} is not a YAML file: {' '.join(str(error).split())}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise OperatorError(f"{file} must contain 'key: value' lines, such as 'port: 8000'")
    return by_key(loaded, str(file))


def by_key(spelt: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of `spelt` by key; a file may spell keys as the command line or other servers do.

    Raises `OperatorError`, whose message begins with `where`, for a key that is set twice.
    """
    values: dict[str, Any] = {}
    for name, value in spelt.items():
        key = name.replace("-", "_")
        key = ALIASES.get(key, key)
        if key in values:
            raise OperatorError(f"{where}: {key} is set twice, once as '{name}': remove one of the two")
        values[key] = value
    return values


def _file_or_preset(file: Path) -> Path:
    return file if file.exists() else presets().get(str(file), file)

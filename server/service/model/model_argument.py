"""The names of a model in the API."""

from pathlib import Path

from numaserve.server.config.serve import ServeConfig

DEMO = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"


def served_name(argument: str, path: Path) -> str:
    """Return the default name of the model that `argument` named and that was found at `path`.

    A hub id is its own name. A local model has the name of its file or folder only: clients should not see its path.
    """
    if argument == DEMO:
        return DEMO_NAME
    if Path(argument).expanduser().exists():
        return path.stem if path.suffix == ".gguf" else path.resolve().name
    return argument


def served_names(config: ServeConfig, path: Path) -> tuple[str, ...]:
    """Return the names of the model found at `path`; answers and metrics use the first."""
    return config.served_model_name or (served_name(config.model, path),)

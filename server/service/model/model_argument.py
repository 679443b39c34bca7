"""The name under which clients know a model."""

from pathlib import Path

DEMO = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"


def served_name(argument: str, path: Path) -> str:
    """The default name of the model that `argument` named and that was found at `path`.

    A hub id is its own name; a local model is called like its file or folder, since clients should not see where on
    this machine it lies.
    """
    if argument == DEMO:
        return DEMO_NAME
    if Path(argument).expanduser().exists():
        return path.stem if path.suffix == ".gguf" else path.resolve().name
    return argument

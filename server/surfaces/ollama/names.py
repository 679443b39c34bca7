"""Names of models as Ollama writes them: with a tag, which is ``latest`` unless another one is given."""

from numaserve.server.generation.served_names import LATEST


def tagged(name: str) -> str:
    """The name with a tag, as listings have it."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST

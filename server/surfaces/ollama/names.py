"""Names of models as Ollama writes them: with a tag, ``latest`` by default."""

from numaserve.server.generation.served_names import LATEST


def tagged(name: str) -> str:
    """Return the name with a tag, as in listings."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST

"""Names of models as Ollama writes them: with a tag, which is ``latest`` unless another one is given."""

from numaserve.server.api.context import ApiContext
from numaserve.server.api.served_names import LATEST


def served_name(context: ApiContext, name: str) -> str:
    """The served name that a request means by `name`; `name` itself where there is none."""
    return name if name in context.model_names else name.removesuffix(LATEST)


def tagged(name: str) -> str:
    """The name with a tag, as listings have it."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST

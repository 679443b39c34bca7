"""The text for the operator about the activations that weights in groups are multiplied by."""

from collections.abc import Mapping, Sequence

from numaserve.workers.interface.settings import ActivationDtype


def products_text(multiplied_by: Mapping[ActivationDtype, Sequence[str]]) -> str:
    """Return the formats of weights, by the activations that they are multiplied by, as text; empty without any."""
    return "; ".join(f"{', '.join(kept)} times {by} activations" for by, kept in multiplied_by.items())

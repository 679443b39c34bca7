"""A low-rank adapter (LoRA) of the served model, as the requests for it hold it."""

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Adapter:
    """A load of an adapter.

    Loads are compared by identity: a load of other files under the same name is another adapter, and finds nothing that
    the earlier load has left in a cache.
    """

    name: str  # in requests
    path: str  # a folder or a .gguf file
    number: int  # of its place on every rank
    load_id: int  # counts the loads of this server
    digest: str  # SHA-256 of its files, in hexadecimal digits
    rank: int  # the largest one of its matrices
    mean_rank: float  # of all matrices that adapters can update, weighted by their rows and columns
    matrices: int  # of the model that it changes

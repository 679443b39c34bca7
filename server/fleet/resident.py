"""A model of the file together with its place on the machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.server.fleet.models_file import ModelSpec
from numaserve.server.fleet.residency import Claim


@dataclass(frozen=True)
class Resident:
    """A model and its place: processors, and what it claims of them."""

    spec: ModelSpec
    cpus: Sequence[int]
    claim: Claim

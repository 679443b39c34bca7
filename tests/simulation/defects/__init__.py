"""Defects that are put into the server to show that the simulation finds them."""

from tests.simulation.defects import (
    of_adapters,
    of_anchors,
    of_disk,
    of_hosts,
    of_images,
    of_parts,
    of_time,
    of_windows,
)
from tests.simulation.defects.registry import DEFECTS

__all__ = [
    "DEFECTS",
    "of_adapters",
    "of_anchors",
    "of_disk",
    "of_hosts",
    "of_images",
    "of_parts",
    "of_time",
    "of_windows",
]

"""A rank's packed weights, found by the layers' declarations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.layers.parameters import MatrixParameter, VectorParameter
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.loader import load_weights
from numaserve.workers.weights.source import TensorSource
from numaserve.workers.weights.weights import Weights


@dataclass(frozen=True)
class Loaded:
    """What a rank has."""

    config: ModelConfig
    part: RankPart
    weights: Weights

    @property
    def all_matrices(self) -> list[PackedMatrix]:
        """In the order in which they are loaded."""
        return list(self.weights.matrices)

    def matrix(self, parameter: MatrixParameter) -> PackedMatrix:
        """What a declaration without `each` became."""
        (found,) = self.matrices(parameter)
        return found

    def matrices(self, parameter: MatrixParameter) -> list[PackedMatrix]:
        """What a declaration became: one for each unit that the rank has."""
        return [self.native(handle) for handle in self.part.matrices(parameter)]

    def vector(self, parameter: VectorParameter) -> Any:
        """The same of a vector; None where the rank has no part of it."""
        handle = self.part.vector(parameter)
        return None if handle is None else self.native(handle)

    def tower_weights(self) -> list[Any]:
        """The values of the vision tower's matrices and vectors; None for a vector that the rank has no part of."""
        tower = self.config.decoder.tower
        assert tower is not None
        found = (
            self.matrix(each) if isinstance(each, MatrixParameter) else self.vector(each) for each in tower.parameters()
        )
        return [None if each is None else each.to_numpy() for each in found]

    def native(self, handle: Any) -> Any:
        """What a handle stands for."""
        return self.weights.native(handle)


def load_part(
    path: Path,
    team: Team,
    shares: list[int],
    rank: int = 0,
    *,
    formats: WeightFormats | None = None,
    settings: ModelSettings | None = None,
    positions: int = 64,
    config: ModelConfig | None = None,
    source: TensorSource | None = None,
) -> Loaded:
    """One rank's part of a checkpoint. What was reported, planned and made is compared on the way."""
    config = config or load_model_config(path)
    settings = settings or ModelSettings(formats=formats or WeightFormats())
    part, done = config.partition(shares, settings).ranks[rank], list[int]()
    source = source or open_source(open_model(path), config)
    weights = load_weights(source, config, part, team, done.append, positions=positions)
    assert np.diff([0, *done]).tolist() == [matrix.nbytes for matrix in weights.matrices]
    assert done[-1] == part.weight_bytes()
    return Loaded(config, part, weights)

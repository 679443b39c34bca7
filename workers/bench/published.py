"""Published figures of other servers, which a measurement of the same model is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from numaserve.configs import published
from numaserve.workers.interface.settings import Quantization
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.machine import Positive, load_machine
from pydantic import BaseModel, ConfigDict


def _with_dashes(name: str) -> str:
    return name.replace("_", "-")


class Entry(BaseModel):
    """An entry of a file of the package. Keys have dashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_with_dashes)


class Sizes(Entry):
    """The class and the sizes by which a model is known, whatever its folder is called."""

    architecture: str
    hidden_size: int
    layers: int
    vocab_size: int | None = None  # None: any

    def are_of(self, config: ModelConfig) -> bool:
        """Return whether the model has these sizes."""
        own = (config.architecture, config.hidden_size, config.num_layers)
        known = (self.architecture, self.hidden_size, self.layers)
        return own == known and self.vocab_size in (None, config.vocab_size)


class Figures(Entry):
    """The latencies of one request at a time, in milliseconds; `host` is a name in `configs/hosts`."""

    host: str
    weights: Quantization
    ttft_ms: Positive
    tpot_ms: Positive


class PublishedModel(Entry):
    """The figures of one model, in several weight formats."""

    name: str
    sizes: Sizes
    figures: list[Figures]


class Publication(Entry):
    """A file of `configs/published`: the figures of a server, for prompts and answers of some tokens."""

    source: str
    server: str
    input_len: int
    output_len: int
    models: list[PublishedModel]


@dataclass(frozen=True)
class PublishedFigures:
    """A published result: the figures, their publication, and the names of the model and the host."""

    publication: Publication
    model: str
    figures: Figures
    host: str


def publications() -> list[Publication]:
    """Return all publications."""
    return [Publication.model_validate(yaml.safe_load(path.read_text())) for path in published().values()]


def published_for(config: ModelConfig) -> Iterator[PublishedFigures]:
    """Yield the published results of the model with the architecture and the sizes of `config`."""
    for publication in publications():
        for model in publication.models:
            if model.sizes.are_of(config):
                for figures in model.figures:
                    yield PublishedFigures(publication, model.name, figures, load_machine(figures.host).name)

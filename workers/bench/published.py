"""Published figures of other servers, which a measurement of the same model is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from numaserve.configs import published
from numaserve.workers.bench.sizes import Entry, Sizes
from numaserve.workers.interface.settings import Quantization
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.machine import Positive, load_machine


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

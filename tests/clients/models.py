"""The models of servers that are started for clients, other than the demo model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.clients.agent_model import write_agent_model
from tests.clients.encoder_model import write_encoder, write_reranker
from tests.clients.servers import AGENT_OPTIONS, ENCODER_OPTIONS, OPTIONS
from tests.demo_images.checkpoint import written


@dataclass(frozen=True)
class ServedModel:
    """A model, which `write` makes from the folder of the demo model's tokenizer, and the options of its servers."""

    write: Callable[[Path, Path], Path]
    servers: Sequence[Sequence[str]]


MODELS: Mapping[str, ServedModel] = {
    "agent": ServedModel(write_agent_model, AGENT_OPTIONS),
    "encoder": ServedModel(lambda _tokenizer, folder: write_encoder(folder), ENCODER_OPTIONS),
    "demo-images": ServedModel(lambda _tokenizer, _folder: written(), (OPTIONS,)),
    "reranker": ServedModel(lambda _tokenizer, folder: write_reranker(folder), ENCODER_OPTIONS),
}

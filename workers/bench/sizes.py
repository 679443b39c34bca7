"""The sizes by which files of the package know a model."""

from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.machine import with_dashes
from pydantic import BaseModel, ConfigDict


class Entry(BaseModel):
    """An entry of a file of the package. Keys have dashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=with_dashes)


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

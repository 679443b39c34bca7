"""EuroBERT: Llama as an encoder, whose tokens see the whole text."""

from dataclasses import replace

from numaserve.workers.models import llama
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.family import Family, GgufForm
from numaserve.workers.models.spec import ModelConfig


def configure(fields: Fields, architecture: str) -> ModelConfig:
    """Map config.json; a missing `rms_norm_eps` is 1e-5, as in transformers."""
    fields = fields.with_defaults(rms_norm_eps=1e-5).with_values(is_causal=False)
    return replace(llama.configure(fields, architecture), family="eurobert")


FAMILY = Family(
    name="eurobert",
    architectures=("EuroBertModel", "EuroBertForMaskedLM"),
    configure=configure,
    gguf=GgufForm("eurobert"),
)

"""Sizes of the products in layers of encoders, which have MLPs without gates."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EncoderShape:
    """Columns of the residual stream, and of the MLP."""

    hidden: int
    intermediate: int


ENCODERS = {
    "minilm": EncoderShape(384, 1536),
    "bge-base": EncoderShape(768, 3072),
    "bge-m3": EncoderShape(1024, 4096),
}

"""Settings with narrower weights than those that do not fit."""

from collections.abc import Iterator

from msgspec.structs import replace
from numaserve.workers.interface.settings import ModelSettings, Quantization

_NARROWER: tuple[Quantization, ...] = ("int8", "int4")


def narrower_settings(settings: ModelSettings) -> Iterator[tuple[Quantization, ModelSettings]]:
    """Yield the alternatives for `--quantization`, the widest format first, with the resulting settings.

    A checkpoint that is quantized already does not support most of them.
    """
    formats = settings.formats
    for each in _NARROWER if formats.linear in (None, "bf16") else _NARROWER[1:]:
        if each != formats.linear:
            # Without the option for the output head, the head stays as it is published, as in `WeightOptions`.
            lm_head = None if formats.lm_head in (None, "bf16") else each
            yield each, replace(settings, formats=replace(formats, linear=each, lm_head=lm_head))

"""The numbers that the reference computes with, and the roundings that operations declare."""

from dataclasses import dataclass

import torch
from numaserve.workers.interface.settings import KvCacheDtype

_MOST = {"int8": 127.0, "fp8_e4m3": 448.0}  # of codes of the KV cache
_SMALLEST_KV_SCALE = 2.0**-64


@dataclass(frozen=True)
class Numbers:
    """Operations compute in `dtype`. `rounded`: what they round to bf16, to int8 with scales or to the KV cache's dtype
    is rounded here too; otherwise it keeps its value. Codes and scales are what fp32 makes of them, as in the kernels.
    """

    dtype: torch.dtype = torch.float32
    rounded: bool = True

    def bf16(self, x: torch.Tensor) -> torch.Tensor:
        """`x` as bf16 keeps it."""
        return x.to(torch.bfloat16).to(self.dtype) if self.rounded else x

    def int8(self, x: torch.Tensor, group: int) -> torch.Tensor:
        """`x` [..., columns] as int8 with a scale for each row, or for each `group` columns, keeps it."""
        if not self.rounded or x.shape[-1] == 0:
            return x
        columns = x.shape[-1]
        padded = torch.nn.functional.pad(x.to(torch.float32), (0, -columns % (group or 1)))
        parts = padded.unflatten(-1, (-1, group or columns))
        peak = parts.abs().amax(-1, keepdim=True)
        # Both are tensors: torch makes `127.0 / peak` a reciprocal and a product, which rounds twice.
        factor = torch.full_like(peak, 127.0) / peak
        codes = torch.round(parts * factor.masked_fill(~factor.isfinite(), 0.0))
        return (codes.to(self.dtype) * (peak / 127.0)).flatten(-2)[..., :columns]

    def kept(self, x: torch.Tensor, dtype: KvCacheDtype) -> torch.Tensor:
        """`x` [..., dimensions of a head] as the KV cache keeps it."""
        if dtype == "bf16" or not self.rounded:
            return self.bf16(x)
        narrow, most = x.to(torch.float32), _MOST[dtype]
        peak = narrow.abs().amax(-1, keepdim=True)
        scale = torch.clamp(peak / most, min=_SMALLEST_KV_SCALE).to(torch.bfloat16).to(torch.float32)
        ratio = narrow / scale
        codes = torch.round(ratio) if dtype == "int8" else ratio.clamp(-most, most).to(torch.float8_e4m3fn)
        return codes.to(self.dtype) * scale


DECLARED = Numbers()  # fp32, rounded as operations declare it

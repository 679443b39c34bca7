"""Writes matrices in the layouts that quantized checkpoints are published in, field by field from the descriptions of
the formats: slow, plain, and with nothing in common with the code that reads them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Tensors = dict[str, torch.Tensor]
Values = npt.NDArray[np.float32]

_MX_GROUP = 32
_E2M1_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1_MIDDLES = (_E2M1_MAGNITUDES[1:] + _E2M1_MAGNITUDES[:-1]) / 2
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Written:
    """The tensors of a matrix, by what follows the module's name, and the weights that they stand for."""

    tensors: Tensors
    values: Values


def rounded_anew(values: Values) -> Values:
    """What is left of weights in groups of 32 with codes of 8 bits and scales of 11, as act-order is kept."""
    groups = values.reshape(len(values), -1, 32)
    mantissa, exponent = np.frexp(np.abs(groups).max(axis=2, keepdims=True) / np.float32(127))
    steps = np.ldexp(np.ceil(mantissa * 2048) / np.float32(2048), exponent)
    # Multiplied, not divided: a weight of half the largest lies between two codes, and the last bit decides.
    return (np.rint(groups * (1 / steps)) * steps).reshape(values.shape)


@dataclass(frozen=True)
class Rounded:
    """Unsigned codes [n, k], scales and zero points [n, groups], and the group of each column."""

    codes: npt.NDArray[np.int32]
    scales: Values
    zeros: npt.NDArray[np.int32]
    index: npt.NDArray[np.int64]

    @property
    def values(self) -> Values:
        """scale * (code - zero)."""
        zeros, scales = (np.take(each, self.index, axis=1) for each in (self.zeros, self.scales))
        return (self.codes - zeros).astype(np.float32) * scales


def rounded(weight: Values, bits: int, group: int, symmetric: bool, *, act_order: bool = False) -> Rounded:
    """Round to nearest, with scales in fp16; `group` -1 is a whole row. With `act_order` the columns are dealt to the
    groups at random."""
    n, k = weight.shape
    width = k if group == -1 else group
    index = np.arange(k) // width
    if act_order:
        index = np.random.default_rng(k).permutation(index)
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    order = np.argsort(index, kind="stable")
    # The last group may be shorter: its first column once more changes neither its largest nor its smallest weight.
    order = np.concatenate([order, np.repeat(order[k - k % width : k - k % width + 1], -k % width)])
    groups = (np.take(weight, order, axis=1) if act_order or len(order) > k else weight).reshape(n, -1, width)
    if symmetric:
        scales = (np.abs(groups).max(axis=2) / (middle - 1)).astype(np.float16)
        zeros = np.full(scales.shape, middle, np.int32)
    else:
        low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
        scales = ((high - low) / top).astype(np.float16)
        # A zero point of 0 has no minus one in four bits.
        zeros = np.clip(np.rint(-low / scales.astype(np.float32)), 1, top).astype(np.int32)
    wide = scales.astype(np.float32)
    steps = np.rint(weight / np.take(wide, index, axis=1)).astype(np.int32)
    codes = np.clip(steps + np.take(zeros, index, axis=1), 0, top)
    return Rounded(codes, wide, zeros, index)


def pack_words(values: npt.NDArray[np.integer], bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Fields of the last dimension into int32 words, lowest bits first; `order` says which of its fields comes when.
    Those of 3 bits go on in the next word, and end with whole threes of words."""
    if bits == 3:
        padded = np.pad(values, ((0, 0), (0, -values.shape[1] % 32))).astype(np.uint8)
        stream = np.unpackbits(padded[:, :, None], axis=2, bitorder="little")[:, :, :3].reshape(len(values), -1)
        return torch.from_numpy(np.packbits(stream, axis=1, bitorder="little").view(np.int32))
    fields = 32 // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % fields))).astype(np.uint32)
    words = padded.reshape(len(values), -1, fields)
    out = np.zeros(words.shape[:2], np.uint32)
    for position in range(fields):
        out |= words[:, :, position if order is None else order[position]] << np.uint32(bits * position)
    return torch.from_numpy(out.view(np.int32))


def gptq(weight: Values, *, bits: int, group: int, symmetric: bool, minus_one: bool, act_order: bool) -> Written:
    """qweight packed along the in features, qzeros along the out features."""
    r = rounded(weight, bits, group, symmetric, act_order=act_order)
    stored_zeros = r.zeros.T - (1 if minus_one else 0)
    tensors = {
        "qweight": pack_words(r.codes, bits).T.contiguous(),
        "qzeros": pack_words(stored_zeros, bits),
        "scales": torch.from_numpy(r.scales.T.astype(np.float16).copy()),
        "g_idx": torch.from_numpy(r.index.astype(np.int32)),
    }
    return Written(tensors, r.values)


def awq(weight: Values, *, group: int, symmetric: bool = False) -> Written:
    """qweight and qzeros packed along the out features, in AWQ's order."""
    r = rounded(weight, 4, group, symmetric)
    tensors = {
        "qweight": pack_words(r.codes.T, 4, AWQ_ORDER),
        "qzeros": pack_words(r.zeros.T, 4, AWQ_ORDER),
        "scales": torch.from_numpy(r.scales.T.astype(np.float16).copy()),
    }
    return Written(tensors, r.values)


def packed(weight: Values, *, bits: int, group: int, symmetric: bool, act_order: bool = False) -> Written:
    """compressed-tensors, pack-quantized."""
    r = rounded(weight, bits, group, symmetric, act_order=act_order)
    tensors = {
        "weight_packed": pack_words(r.codes, bits),
        "weight_scale": torch.from_numpy(r.scales).to(torch.float16),
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack_words(r.zeros.T, bits).T.contiguous()
    if act_order:
        tensors["weight_g_idx"] = torch.from_numpy(r.index.astype(np.int32))
    return Written(tensors, r.values)


def with_input_scale(written: Written) -> Written:
    """The same with a fixed scale of the activations."""
    return Written(written.tensors | {"input_scale": torch.tensor([0.02])}, written.values)


def integers(weight: Values, *, group: int, symmetric: bool, bits: int = 8) -> Written:
    """compressed-tensors, int-quantized."""
    r = rounded(weight, bits, group, symmetric)
    middle = 1 << (bits - 1)
    tensors = {
        "weight": torch.from_numpy((r.codes - middle).astype(np.int8)),
        "weight_scale": torch.from_numpy(r.scales).to(torch.float16),
    }
    if not symmetric:
        tensors["weight_zero_point"] = torch.from_numpy((r.zeros - middle).astype(np.int8))
    return Written(tensors, r.values)


def fp8(weight: Values, *, block: tuple[int, int] | None, per_row: bool = True, scale: str = "weight_scale") -> Written:
    """e4m3, with a scale in fp32 for each block, each row, or the whole matrix."""
    n, k = weight.shape
    rows, columns = block or ((1, k) if per_row else (n, k))
    peaks = np.maximum.reduceat(np.abs(weight), np.arange(0, n, rows), axis=0)
    scales = np.maximum.reduceat(peaks, np.arange(0, k, columns), axis=1) / np.float32(448)
    wide = np.repeat(np.repeat(scales, rows, axis=0)[:n], columns, axis=1)[:, :k]
    codes = torch.from_numpy(weight / wide).to(torch.float8_e4m3fn)
    values = codes.float().numpy() * wide
    stored = torch.from_numpy(scales if block or per_row else scales.reshape(()))
    return Written({"weight": codes, scale: stored}, values)


def fp8_blocks_of_four_dimensions(weight: Values) -> Written:
    """ModelOpt, FP8_PB_WO: scales of blocks of 128 x 128 as [n / 128, 1, k / 128, 1]."""
    written = fp8(weight, block=(128, 128))
    scales = written.tensors["weight_scale"][:, None, :, None].contiguous()
    return Written(written.tensors | {"weight_scale": scales}, written.values)


def mxfp8(weight: Values) -> Written:
    """OCP Microscaling Formats: e4m3 with a power of two for 32 columns, by which the largest lies from 256 to 448."""
    groups = weight.reshape(len(weight), -1, _MX_GROUP)
    exponents = np.ceil(np.log2(np.abs(groups).max(axis=2) / 448)).astype(np.int32)
    codes = torch.from_numpy(np.ldexp(groups, -exponents[:, :, None])).to(torch.float8_e4m3fn)
    values = np.ldexp(codes.float().numpy(), exponents[:, :, None]).reshape(weight.shape)
    scales = torch.from_numpy((exponents + 127).astype(np.uint8))
    return Written({"weight": codes.reshape(weight.shape), "weight_scale": scales}, values)


def _nearest_e2m1(scaled: Values) -> npt.NDArray[np.uint8]:
    """Return the nearest of `_E2M1_MAGNITUDES`, of two as near the smaller, by its place there."""
    magnitudes, places = np.abs(scaled), np.zeros(scaled.shape, np.uint8)
    for middle in _E2M1_MIDDLES:
        places += magnitudes > middle
    return places


def nvfp4(weight: Values, *, modelopt: bool = False, factor: float = 0.0) -> Written:
    """NVFP4 as compressed-tensors writes it, or ModelOpt. `factor` multiplies all weights; by default, it makes the
    largest scale the largest number of e4m3."""
    n, k = weight.shape
    groups = weight.reshape(n, -1, 16)
    peaks = np.abs(groups).max(axis=2)
    # compressed-tensors stores its inverse, by which weights are divided.
    divisor = np.float32(1 / factor if factor else 448 * 6 / peaks.max())
    whole = np.float32(1) / divisor
    scales = torch.from_numpy(peaks / 6 / whole).to(torch.float8_e4m3fn)
    wide = scales.float().numpy()[:, :, None]
    scaled = np.divide(groups, wide * whole, out=np.zeros_like(groups), where=wide > 0)
    nearest = _nearest_e2m1(scaled)
    codes = (nearest + 8 * (scaled < 0)).astype(np.uint8).reshape(n, k)
    signs = np.where(scaled < 0, -1.0, 1.0)
    values = (_E2M1_MAGNITUDES[nearest] * signs * wide.astype(np.float64) * np.float64(whole)).reshape(n, k)
    stored = torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4)
    if modelopt:
        tensors = {"weight": stored, "weight_scale": scales, "weight_scale_2": torch.tensor(whole)}
    else:
        tensors = {"weight_packed": stored, "weight_scale": scales, "weight_global_scale": torch.tensor([divisor])}
    return Written(tensors, values.astype(np.float32))


def mxfp4(weight: Values, *, packed: bool = False) -> Written:
    """OCP Microscaling Formats: `blocks` and `scales` as gpt-oss has them, or `packed` as compressed-tensors does."""
    n, k = weight.shape
    groups = -(-k // _MX_GROUP)
    padded = np.pad(weight, ((0, 0), (0, groups * _MX_GROUP - k))).reshape(n, groups, _MX_GROUP)
    peaks = np.abs(padded).max(axis=2)
    # The largest magnitude of a group comes to lie from 4 to 8, of which up to 6 can be had.
    exponents = np.floor(np.log2(np.where(peaks > 0, peaks, 1))).astype(np.int32) - 2
    scaled = np.ldexp(padded, -exponents[:, :, None])
    nearest = _nearest_e2m1(scaled)
    codes = (nearest + 8 * (scaled < 0)).astype(np.uint8)
    values = np.ldexp(
        _E2M1_MAGNITUDES[nearest] * np.where(scaled < 0, np.float32(-1), np.float32(1)), exponents[:, :, None]
    )
    blocks = torch.from_numpy(codes[:, :, 0::2] | codes[:, :, 1::2] << 4)
    scales = torch.from_numpy((exponents + 127).astype(np.uint8))
    if packed:
        tensors = {"weight_packed": blocks.reshape(n, -1), "weight_scale": scales}
    else:
        tensors = {"blocks": blocks, "scales": scales}
    return Written(tensors, values.reshape(n, -1)[:, :k].astype(np.float32))

"""The tensors of a GGUF file from values as llama.cpp's converter makes them."""

from collections.abc import Callable, Iterable

import gguf
import numpy as np
import torch

from tests.support.k_quants import fitting, quantize

# The name and values in the file, and the model's own values if these may be rounded.
Converted = Iterable[tuple[str, torch.Tensor, torch.Tensor | None]]


def write_converted(writer: gguf.GGUFWriter, converted: Converted, kind: str, is_plain: Callable[[str], bool]) -> None:
    """Write the whole file. Matrices are of `kind` unless their name `is_plain`. The model is given the values that the
    file holds."""
    for name, values, kept in converted:
        array = np.ascontiguousarray(values.numpy())
        in_fp32 = array.ndim == 1 or is_plain(name)
        qtype = fitting(gguf.GGMLQuantizationType["F32" if in_fp32 else kind], array.shape[-1])
        data = quantize(array.reshape(-1, array.shape[-1]), qtype)
        writer.add_tensor(name, data.reshape(*array.shape[:-1], -1) if array.ndim > 1 else data[0], raw_dtype=qtype)
        if kept is not None:
            kept.copy_(torch.from_numpy(gguf.quants.dequantize(data, qtype).reshape(array.shape).copy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""Every published layout, decoded, is the weights that a plain reading of its description gives."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization import read_quantization
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.weights.quantized.coded import CodedTensor, e4m3_values, requantized
from numaserve.workers.weights.quantized.layouts import QuantizedMatrix, parts_of
from numaserve.workers.weights.safetensors_source import SafetensorsSource
from safetensors.torch import save_file

from tests.support.configured import configured
from tests.support.published import LAYOUTS, Published
from tests.support.published_writers import Values, gptq, pack_words

SHAPE = (40, 320)


def random_weight(shape: tuple[int, int] = SHAPE) -> Values:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def stored_as(published: Published) -> Stored:
    fields = Fields({"quantization_config": published.config}, "config.json")
    return read_quantization(fields, configured())["layers.0.mlp.up_proj"]


def matrix_of(
    published: Published, values: Values, folder: Path, **edits: torch.Tensor
) -> tuple[QuantizedMatrix, Values]:
    written = published.write(values)
    tensors = {f"up.{suffix}": tensor for suffix, tensor in (written.tensors | edits).items()}
    save_file(tensors, folder / "model.safetensors")
    shape = (values.shape[0], values.shape[1])
    return QuantizedMatrix(
        SafetensorsSource(SafetensorsFiles(folder)), "up", stored_as(published), shape
    ), written.values


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_decodes_to_what_was_written(name: str, tmp_path: Path) -> None:
    published = LAYOUTS[name]
    matrix, values = matrix_of(published, random_weight(), tmp_path)
    stored = stored_as(published)
    assert stored.native == published.native
    for rows in (range(40), range(16, 24), range(3, 30)):
        coded = matrix.decode(rows)
        assert coded.format == stored.file_codes
        assert coded.codes.shape == (len(rows), SHAPE[1])
        assert coded.group % 32 == 0 or not published.exact or stored.native == "nvfp4"
        assert coded.scales.shape == (len(rows), -(-SHAPE[1] // coded.group))
        has_offsets = stored.has_zeros or stored.has_minima or stored.reordered
        assert (coded.offsets is not None) == (has_offsets or (stored.source_group > 0 and not stored.symmetric))
        np.testing.assert_array_equal(coded.dequantized(), values[rows.start : rows.stop])


def test_rounding_anew_is_off_by_a_253rd_at_most() -> None:
    values = random_weight()
    found = requantized("w", values).dequantized()
    peaks = np.abs(values.reshape(len(values), -1, 32)).max(axis=2)
    assert (np.abs(found - values) <= np.repeat(peaks / 253, 32, axis=1)).all()


@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.native == "int4"])
def test_codes_of_4_bits_mean_the_same_as_codes_of_8(name: str, tmp_path: Path) -> None:
    matrix, values = matrix_of(LAYOUTS[name], random_weight(), tmp_path)
    wide = matrix.decode(range(40)).widened()
    assert wide.format == "int8_group"
    np.testing.assert_array_equal(wide.dequantized(), values)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_written_has_the_parts_that_the_layout_asks_for(name: str) -> None:
    tensors = LAYOUTS[name].write(random_weight()).tensors
    parts = parts_of(stored_as(LAYOUTS[name]), *SHAPE)
    assert set(tensors) <= set(parts)
    assert {suffix for suffix, part in parts.items() if part.required} <= set(tensors)
    for suffix, tensor in tensors.items():
        assert tuple(tensor.shape) in parts[suffix].shapes


def test_a_zero_point_of_0_survives_the_minus_one_of_gptq(tmp_path: Path) -> None:
    """GPTQModel takes one off each field of a word at once: where a field is 0 it borrows from the next."""
    wanted = np.array([[0x00F0_1032]] * 5 + [[0x7654_3210]] * 5, np.uint32)
    zeros = {}
    for version, one in (("gptq", 0x1111_1111), ("gptq_v2", 0)):
        published = LAYOUTS["gptq asymmetric"]
        published = replace(published, config=published.config | {"checkpoint_format": version, "group_size": 32})
        written = gptq(random_weight((8, 320)), bits=4, group=32, symmetric=False, minus_one=False, act_order=False)
        words = (wanted - np.uint32(one)).view(np.int32)
        published = replace(published, write=lambda _, written=written: written)
        matrix, _ = matrix_of(published, random_weight((8, 320)), tmp_path, qzeros=torch.from_numpy(words))
        zeros[version] = matrix.decode(range(8)).offsets
    np.testing.assert_array_equal(zeros["gptq"], zeros["gptq_v2"])
    np.testing.assert_array_equal(zeros["gptq"][:, 0], [2, 3, 0, 1, 0, 15, 0, 0])


def test_of_3_bits_a_field_of_7_is_a_zero_point_of_0(tmp_path: Path) -> None:
    zeros = np.arange(5 * 40).reshape(5, 40) % 8
    edits = {"qzeros": pack_words((zeros - 1) % 8, 3)}
    matrix, _ = matrix_of(LAYOUTS["gptq 3 bits"], random_weight(), tmp_path, **edits)
    np.testing.assert_array_equal(matrix.decode(range(3, 40)).offsets, zeros.T[3:])


def test_e4m3_is_what_torch_makes_of_it() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(e4m3_values(), codes.view(torch.float8_e4m3fn).float().numpy())


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_weights_that_are_not_numbers_are_refused(code: int, tmp_path: Path) -> None:
    published = LAYOUTS["fp8 rows"]
    weight = published.write(random_weight()).tensors["weight"].view(torch.uint8).clone()
    weight[7, 9] = code
    matrix, _ = matrix_of(published, random_weight(), tmp_path, weight=weight.view(torch.float8_e4m3fn))
    matrix.decode(range(7))
    with pytest.raises(OperatorError, match=r"tensor up\.weight holds NaN weights"):
        matrix.decode(range(8))


@pytest.mark.parametrize("name", ["gptq", "awq", "w4a16", "w8a8", "fp8 rows", "fp8 blocks"])
def test_scales_that_are_not_finite_are_refused(name: str, tmp_path: Path) -> None:
    written = LAYOUTS[name].write(random_weight()).tensors
    (suffix,) = [suffix for suffix in written if "scale" in suffix]
    spoilt = written[suffix].clone()
    spoilt[0, 0] = torch.inf
    matrix, _ = matrix_of(LAYOUTS[name], random_weight(), tmp_path, **{suffix: spoilt})
    with pytest.raises(OperatorError, match=f"tensor up.{suffix} holds scales that are not finite"):
        matrix.decode(range(40))


def test_a_power_of_mxfp8_that_is_no_number_is_refused(tmp_path: Path) -> None:
    published = LAYOUTS["mxfp8"]
    scales = published.write(random_weight()).tensors["weight_scale"].clone()
    scales[7, 9] = 255
    matrix, _ = matrix_of(published, random_weight(), tmp_path, weight_scale=scales)
    matrix.decode(range(7))
    with pytest.raises(OperatorError, match=r"tensor up\.weight_scale holds scales that are not finite"):
        matrix.decode(range(8))


def test_groups_that_are_not_there_are_refused(tmp_path: Path) -> None:
    for value in (10, -1, 2**31 - 1):
        index = torch.zeros(SHAPE[1], dtype=torch.int32)
        index[5] = value
        matrix, _ = matrix_of(LAYOUTS["gptq act-order"], random_weight(), tmp_path, g_idx=index)
        with pytest.raises(OperatorError, match=r"tensor up\.g_idx names groups that do not exist"):
            matrix.decode(range(40))


def test_an_order_that_the_configuration_does_not_announce_is_refused(tmp_path: Path) -> None:
    index = torch.arange(SHAPE[1], dtype=torch.int32).flip(0) // 128
    matrix, _ = matrix_of(LAYOUTS["gptq"], random_weight(), tmp_path, g_idx=index)
    with pytest.raises(OperatorError, match=r"tensor up\.g_idx is in act-order, but"):
        matrix.decode(range(40))


@pytest.mark.parametrize("name", ["gptq", "auto-round awq"])
def test_zero_points_that_the_configuration_denies_are_refused(name: str, tmp_path: Path) -> None:
    qzeros = LAYOUTS[name].write(random_weight()).tensors["qzeros"].clone()
    qzeros[0, 0] += 1
    matrix, _ = matrix_of(LAYOUTS[name], random_weight(), tmp_path, qzeros=qzeros)
    with pytest.raises(OperatorError, match=r"tensor up\.qzeros holds zero points"):
        matrix.decode(range(40))


def test_rounding_anew_takes_zeros_and_tiny_values() -> None:
    values = np.zeros((2, 64), np.float32)
    values[1, :32] = 1e-44
    coded = requantized("w", values)
    assert (coded.codes[0] == 128).all()
    assert np.isfinite(coded.dequantized()).all()
    assert np.abs(coded.dequantized() - values).max() <= 1e-44


def test_rounding_anew_takes_a_last_group_of_fewer_columns() -> None:
    values = random_weight((3, 72))
    coded = requantized("w", values)
    assert coded.codes.shape == (3, 72)
    assert coded.scales.shape == (3, 3)
    assert np.abs(coded.dequantized() - values).max() <= np.abs(values).max() / 253


def test_a_tensor_without_zero_points_is_around_the_middle() -> None:
    codes = np.array([[0, 8, 15]], np.uint8)
    coded = CodedTensor("w", "int4", codes, np.ones((1, 1), np.float32), 128)
    np.testing.assert_array_equal(coded.dequantized(), [[-8, 0, 7]])
    np.testing.assert_array_equal(replace(coded, format="int8_group").dequantized(), [[-128, -120, -113]])
    np.testing.assert_array_equal(replace(coded, format="int8").dequantized(), [[0, 8, 15]])

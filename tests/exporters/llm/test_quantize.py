"""Block quantisation: the layout against onnxruntime, the search against plain rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.llm.quantize import QuantizedMatrix, pack, quantize, unpack

EVERY_KIND = [
    (bits, block_size, symmetric) for bits in (4, 8) for block_size in (32, 64, 128) for symmetric in (True, False)
]


def random_weight(rows: int = 48, columns: int = 576, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def round_to_nearest(weight: np.ndarray, bits: int, block_size: int, symmetric: bool) -> np.ndarray:
    """The textbook rule, one block at a time: the range of the block (with zero in it) spread over the codes."""
    result = np.empty_like(weight)
    for row in range(weight.shape[0]):
        for start in range(0, weight.shape[1], block_size):
            block = weight[row, start : start + block_size].astype(np.float64)
            if symmetric:
                scale, zero = np.abs(block).max() / (2 ** (bits - 1) - 1), 2 ** (bits - 1)
            else:
                low, high = min(block.min(), 0.0), max(block.max(), 0.0)
                scale = (high - low) / (2**bits - 1)
                zero = np.rint(-low / scale) if scale else 0
            codes = np.clip(np.rint(block / scale) + zero, 0, 2**bits - 1) if scale else np.full(block.shape, zero)
            result[row, start : start + block_size] = (codes - zero) * scale
    return result


def squared_error(approximation: np.ndarray, weight: np.ndarray) -> float:
    return float(((approximation.astype(np.float64) - weight) ** 2).sum())


def matmul_nbits(matrix: QuantizedMatrix) -> np.ndarray:
    """What onnxruntime takes the matrix for: identity times the matrix, by MatMulNBits itself."""
    onnx = pytest.importorskip("onnx")
    import onnxruntime

    rows, columns = matrix.scales.shape[0], matrix.columns
    stored = {"packed": matrix.packed, "scales": matrix.scales}
    if matrix.zero_points is not None:
        stored["zero_points"] = matrix.zero_points
    node = onnx.helper.make_node(
        "MatMulNBits",
        ["x", *stored],
        ["y"],
        domain="com.microsoft",
        K=columns,
        N=rows,
        bits=matrix.bits,
        block_size=matrix.block_size,
        accuracy_level=0,
    )
    float32 = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "one product",
        [onnx.helper.make_tensor_value_info("x", float32, [columns, columns])],
        [onnx.helper.make_tensor_value_info("y", float32, [columns, rows])],
        [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.eye(columns, dtype=np.float32)})[0].T


@pytest.mark.parametrize(("bits", "block_size", "symmetric"), EVERY_KIND)
@pytest.mark.parametrize("columns", [256, 576, 100])  # whole blocks, half a block left over, less than one block
def test_onnxruntime_reads_the_same_matrix(bits: int, block_size: int, symmetric: bool, columns: int) -> None:
    matrix = quantize(random_weight(columns=columns), bits, block_size, symmetric)
    np.testing.assert_allclose(matmul_nbits(matrix), matrix.dequantize(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_onnxruntime_reads_an_odd_number_of_blocks(bits: int) -> None:
    matrix = quantize(random_weight(columns=3 * 64), bits, 64, symmetric=False)
    assert matrix.zero_points is not None
    assert matrix.zero_points.shape == (48, 2 if bits == 4 else 3)
    np.testing.assert_allclose(matmul_nbits(matrix), matrix.dequantize(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("bits", "block_size", "symmetric"), EVERY_KIND)
def test_layout(bits: int, block_size: int, symmetric: bool) -> None:
    matrix = quantize(random_weight(), bits, block_size, symmetric)
    blocks = -(-576 // block_size)
    assert matrix.packed.dtype == np.uint8
    assert matrix.packed.shape == (48, blocks, block_size * bits // 8)
    assert matrix.scales.dtype == np.float32
    assert matrix.scales.shape == (48, blocks)
    assert (matrix.zero_points is None) == symmetric
    assert matrix.dequantize().shape == (48, 576)


def test_low_nibble_first() -> None:
    codes = np.arange(16, dtype=np.uint8)
    packed = pack(codes, 4)
    assert packed.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    assert unpack(packed, 4).tolist() == codes.tolist()


@pytest.mark.parametrize(("bits", "block_size", "symmetric"), EVERY_KIND)
def test_search_beats_rounding_to_nearest(bits: int, block_size: int, symmetric: bool) -> None:
    weight = random_weight(columns=512)
    error = squared_error(quantize(weight, bits, block_size, symmetric).dequantize(), weight)
    plain = squared_error(round_to_nearest(weight, bits, block_size, symmetric), weight)
    # Gaussian weights: at 4 bits the search removes 10 % of the squared error, and 30 % where ranges are symmetric.
    assert error < plain * {(4, False): 0.92, (4, True): 0.72, (8, False): 0.96, (8, True): 0.96}[bits, symmetric]


@settings(max_examples=60)
@given(
    weight=npst.arrays(
        np.float32,
        st.tuples(st.integers(1, 5), st.integers(1, 100)),
        elements=st.floats(-(2.0**60), 2.0**60, width=32),
    ),
    bits=st.sampled_from([4, 8]),
    block_size=st.sampled_from([32, 64]),
)
def test_never_worse_than_rounding_to_nearest(weight: np.ndarray, bits: int, block_size: int) -> None:
    approximation = quantize(weight, bits, block_size, symmetric=False).dequantize()
    plain = squared_error(round_to_nearest(weight, bits, block_size, symmetric=False), weight)
    rounding = (np.abs(weight).max() * 2.0**-22) ** 2 * weight.size  # float32 against the reference's float64
    assert squared_error(approximation, weight) <= plain * (1 + 1e-4) + rounding


@pytest.mark.parametrize(("bits", "block_size", "symmetric"), EVERY_KIND)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 0.3, -0.7, 1e30, 1e-30])
def test_constant_blocks_are_kept(bits: int, block_size: int, symmetric: bool, value: float) -> None:
    weight = np.full((3, 2 * block_size), value, np.float32)
    np.testing.assert_allclose(quantize(weight, bits, block_size, symmetric).dequantize(), weight, rtol=2e-7)


def test_zero_blocks_among_others_stay_zero() -> None:
    weight = random_weight(8, 128)
    weight[:, 32:64] = 0
    assert not quantize(weight, 4, 32, symmetric=False).dequantize()[:, 32:64].any()


def test_a_matrix_on_the_grid_is_kept_exactly() -> None:
    generator = np.random.default_rng(1)
    codes = generator.integers(0, 16, (16, 8, 32))
    codes[:, :, 0], codes[:, :, 1] = 0, 15  # every block uses its whole range
    weight = ((codes - 6) * 0.25).astype(np.float32).reshape(16, 256)
    np.testing.assert_allclose(quantize(weight, 4, 32, symmetric=False).dequantize(), weight, rtol=1e-6)


def test_slabs_do_not_show() -> None:
    """A matrix of many slabs gives row for row what each row gives alone."""
    weight = random_weight(rows=700, columns=512)
    whole = quantize(weight, 4, 32, symmetric=False)
    for row in (0, 255, 256, 699):
        alone = quantize(weight[row : row + 1], 4, 32, symmetric=False)
        np.testing.assert_array_equal(whole.packed[row], alone.packed[0])
        np.testing.assert_array_equal(whole.scales[row], alone.scales[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(bad: float) -> None:
    weight = random_weight()
    weight[3, 5] = bad
    with pytest.raises(UnsupportedModel, match="NaN or infinite"):
        quantize(weight, 4, 32, symmetric=False)


@pytest.mark.parametrize("bits", [4, 8])
def test_scales_can_be_kept_positive(bits: int) -> None:
    weight = np.random.default_rng(3).normal(size=(64, 64)).astype(np.float32)
    free, positive = (quantize(weight, bits, 32, symmetric=True, positive_scales=only) for only in (False, True))
    assert (free.scales < 0).any()
    assert (positive.scales > 0).all()
    error = np.abs(positive.dequantize() - weight)
    assert (error <= np.abs(weight).reshape(64, 2, 32).max(-1).repeat(32, 1) / 2 ** (bits - 2)).all()

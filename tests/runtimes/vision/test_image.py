"""Image files of every kind become the model's codes, or one line that says why not."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError, ImageError, MissingExtra
from edgepipe.runtimes.vision.image import Preprocessing, read_image
from edgepipe.runtimes.vision.plan import TensorFormat

Image = pytest.importorskip("PIL.Image")

RGB = TensorFormat((1, 6, 5, 3), "int8", 1 / 255, -128)
GREY = TensorFormat((1, 6, 5, 1), "int8", 1 / 255, -128)


def colours(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (6, 5, 3), np.uint8)


def png(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b""))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def npy(shape: tuple[int, ...]) -> bytes:
    """A .npy file that claims a shape and has no elements."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_pixels_of_the_models_size_are_codes(tmp_path: Path) -> None:
    Image.fromarray(colours()).save(tmp_path / "image.png")
    codes = read_image(tmp_path / "image.png", Preprocessing(RGB))
    assert codes.dtype == np.int8
    assert np.array_equal(codes, colours().astype(np.int16)[np.newaxis] - 128)


def test_uint8_and_float_models(tmp_path: Path) -> None:
    Image.fromarray(colours()).save(tmp_path / "image.png")
    path = tmp_path / "image.png"
    assert np.array_equal(read_image(path, Preprocessing(TensorFormat((1, 6, 5, 3), "uint8", 1.0, 0)))[0], colours())
    real = read_image(path, Preprocessing(TensorFormat((1, 6, 5, 3), "float32", None, None)))
    assert np.array_equal(real[0], (colours() / 255).astype(np.float32))


def test_mean_and_std_by_the_formula(tmp_path: Path) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    form = TensorFormat((1, 6, 5, 3), "int8", 0.0186, -14)
    codes = Preprocessing(form, mean, std)(colours())
    for pixel, code in zip(colours().reshape(-1, 3).tolist(), codes.reshape(-1, 3).tolist(), strict=True):
        for channel in range(3):
            real = (pixel[channel] / 255 - mean[channel]) / std[channel]
            assert code[channel] == min(max(round(real / 0.0186) - 14, -128), 127)


def test_a_photograph_is_resized_as_pillow_does(tmp_path: Path) -> None:
    large = np.random.default_rng(1).integers(0, 256, (31, 47, 3), np.uint8)
    Image.fromarray(large).save(tmp_path / "image.bmp")
    expected = np.asarray(Image.fromarray(large).resize((5, 6), Image.Resampling.BILINEAR)).astype(np.int16) - 128
    assert np.array_equal(read_image(tmp_path / "image.bmp", Preprocessing(RGB))[0], expected)


@pytest.mark.parametrize("form", [RGB, GREY])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_of_an_even_image(tmp_path: Path, mode: str, form: TensorFormat) -> None:
    """White in any mode is white to the model."""
    if mode == "I;16":
        image = Image.fromarray(np.full((9, 9), 65535, np.uint16))
    else:
        image = Image.new("RGB", (9, 9), "white").convert(mode)
    image.save(tmp_path / "image.tiff")
    codes = read_image(tmp_path / "image.tiff", Preprocessing(form))
    assert codes.shape == form.shape
    assert (codes == 127).all()


def test_16_bits_are_cut_to_their_upper_8(tmp_path: Path) -> None:
    deep = np.random.default_rng(2).integers(0, 65536, (6, 5), np.uint16)
    Image.fromarray(deep).save(tmp_path / "image.png")
    codes = read_image(tmp_path / "image.png", Preprocessing(GREY))
    assert np.array_equal(codes[0, :, :, 0], (deep // 256).astype(np.int16) - 128)


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    image = np.zeros((6, 5, 4), np.uint8)
    image[:3, :, 3] = 255
    Image.fromarray(image).save(tmp_path / "image.png")
    codes = read_image(tmp_path / "image.png", Preprocessing(RGB))
    assert (codes[0, :3] == -128).all()
    assert (codes[0, 3:] == 127).all()


def test_a_camera_held_sideways(tmp_path: Path) -> None:
    sideways = Image.fromarray(np.rot90(colours(), 1))
    exif = sideways.getexif()
    exif[274] = 6  # Orientation: to be turned by 90 degrees, clockwise
    sideways.save(tmp_path / "image.png", exif=exif)
    codes = read_image(tmp_path / "image.png", Preprocessing(RGB))
    assert np.array_equal(codes[0], colours().astype(np.int16) - 128)


def test_arrays_in_files(tmp_path: Path) -> None:
    path, preprocessing = tmp_path / "image.npy", Preprocessing(RGB)
    np.save(path, colours())
    assert np.array_equal(read_image(path, preprocessing)[0], colours().astype(np.int16) - 128)
    codes = np.random.default_rng(3).integers(-128, 128, RGB.shape, np.int8)
    np.save(path, codes)
    found = read_image(path, preprocessing)
    assert np.array_equal(found, codes)
    assert isinstance(found, np.memmap)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floating_point_is_real_values(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "image.npy"
    np.save(path, (colours() / 255).astype(kind))
    assert np.array_equal(read_image(path, Preprocessing(RGB))[0], colours().astype(np.int16) - 128)
    np.save(path, np.full((6, 5, 3), [-9, 0.4, 9], kind))
    assert read_image(path, Preprocessing(RGB))[0, 0, 0].tolist() == [-128, -26, 127]
    real = read_image(path, Preprocessing(TensorFormat((1, 6, 5, 3), "float32", None, None)))
    assert real.dtype == np.float32
    assert np.allclose(real[0, 0, 0], [-9, 0.4, 9], atol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    np.save(tmp_path / "image.npy", np.full((6, 5, 3), value))
    with pytest.raises(ImageError, match="holds NaN or infinity"):
        read_image(tmp_path / "image.npy", Preprocessing(RGB))


def jpeg(path: Path) -> bytes:
    Image.fromarray(np.random.default_rng(4).integers(0, 256, (64, 64, 3), np.uint8)).save(path, "JPEG")
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.png", b"no image", "is no image that Pillow knows"),
        ("empty.jpg", b"", "is no image that Pillow knows"),
        ("huge.png", png(60_000, 60_000), "more than 108000000 pixels"),
        ("large.png", png(12_000, 9_001), "more than 108000000 pixels"),
        ("bare.png", png(20, 20), "cannot be decoded"),
        ("text.npy", b"no array", "is no array"),
        ("empty.npy", b"", "is no array"),
        ("huge.npy", npy((1, 10**9, 10**9, 3)), "is no array"),
        ("other.npy", npy((1, 6, 4, 3)) + bytes(72), "has shape (1, 6, 4, 3): the model takes (6, 5, 3)"),
    ],
)
def test_what_is_no_image(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImageError) as caught:
        read_image(tmp_path / name, Preprocessing(RGB))
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_cut_short_anywhere(tmp_path: Path) -> None:
    whole = jpeg(tmp_path / "whole.jpg")
    for length in range(0, len(whole) - 2, 97):
        (tmp_path / "cut.jpg").write_bytes(whole[:length])
        with pytest.raises(ImageError):
            read_image(tmp_path / "cut.jpg", Preprocessing(RGB))


@pytest.mark.parametrize("name", ["absent.png", "absent.npy", "."])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="No such file|Is a directory"):
        read_image(tmp_path / name, Preprocessing(RGB))


def test_pickled_arrays_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ImageError, match="is no array"):
        read_image(tmp_path / "objects.npy", Preprocessing(RGB))


def test_a_model_of_other_channels(tmp_path: Path) -> None:
    Image.fromarray(colours()).save(tmp_path / "image.png")
    with pytest.raises(ImageError, match=r"takes 4 channels.*give a \.npy file"):
        read_image(tmp_path / "image.png", Preprocessing(TensorFormat((1, 6, 5, 4), "int8", 1.0, 0)))
    with pytest.raises(ImageError, match="expected 4 channels"):
        Preprocessing(TensorFormat((1, 6, 5, 4), "int8", 1.0, 0))(colours())


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"edgepipe\[vision\]"):
        read_image(tmp_path / "image.png", Preprocessing(RGB))


@pytest.mark.parametrize("seed", range(8))
def test_damaged_files_are_images_or_errors(tmp_path: Path, seed: int) -> None:
    generator, whole = np.random.default_rng(seed), jpeg(tmp_path / "whole.jpg")
    for _ in range(20):
        damaged: Any = np.frombuffer(whole, np.uint8).copy()
        damaged[generator.integers(0, len(damaged), 30)] = generator.integers(0, 256, 30)
        (tmp_path / "damaged.jpg").write_bytes(damaged.tobytes())
        try:
            codes = read_image(tmp_path / "damaged.jpg", Preprocessing(RGB))
        except EdgepipeError:
            continue
        assert codes.shape == RGB.shape

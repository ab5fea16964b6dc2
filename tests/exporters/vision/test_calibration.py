"""Calibration images: files of every kind, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgepipe.errors import EdgepipeError, ImageError, UnsupportedModel
from edgepipe.exporters.vision.calibration import MAX_SAMPLES, Normalization, read_samples, smooth_noise
from edgepipe.runtimes.vision.image import Preprocessing, read_image
from edgepipe.runtimes.vision.plan import TensorFormat

Image = pytest.importorskip("PIL.Image")

SHAPE = (6, 8, 3)
TO_REAL = Normalization()


def test_an_image_is_resized_and_normalised(tmp_path: Path):
    Image.new("RGB", (40, 20), (255, 51, 0)).save(tmp_path / "red.png")
    (sample,) = read_samples(tmp_path, SHAPE, Normalization((0.5,), (0.25,)))
    assert sample.shape == (1, 6, 8, 3)
    assert sample.dtype == np.float32
    assert np.allclose(sample, [2, -1.2, -2])


def write_like_a_camera(kind: str, path: Path) -> None:
    """An image that looks otherwise than its bytes: deep, turned or see-through."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 14, 3), np.uint8)
    if kind in ("deep.png", "deep.tiff"):
        Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257).save(path)
    elif kind == "turned.jpg":
        image = Image.fromarray(pixels)
        exif = image.getexif()
        exif[274] = 6  # Orientation
        image.save(path, exif=exif)
    else:
        alpha = np.random.default_rng(1).integers(0, 256, (9, 14, 1), np.uint8)
        Image.fromarray(np.concatenate([pixels, alpha], 2)).convert(kind.partition(".")[0]).save(path)


@pytest.mark.parametrize("kind", ["deep.png", "deep.tiff", "turned.jpg", "RGBA.png", "LA.png", "RGBA.webp", "f.npy"])
@pytest.mark.parametrize("channels", [1, 3])
def test_calibration_and_the_device_see_the_same(tmp_path: Path, kind: str, channels: int):
    shape, path = (6, 8, channels), tmp_path / f"image-{kind}"
    mean, std = (0.4,), (0.3,)
    if kind == "f.npy":
        np.save(path, np.random.default_rng(2).uniform(-1, 2, shape))
    else:
        write_like_a_camera(kind, path)
    (sample,) = read_samples(tmp_path, shape, Normalization(mean, std))
    codes = read_image(path, Preprocessing(TensorFormat((1, *shape), "int8", 0.02, -40), mean, std))
    assert sample.std() > 0.1
    assert np.array_equal(codes, np.clip(np.rint(sample.astype(np.float64) / 0.02) - 40, -128, 127))


def test_one_channel_is_grey(tmp_path: Path):
    Image.new("RGB", (8, 6), (255, 0, 0)).save(tmp_path / "red.png")
    (sample,) = read_samples(tmp_path, (6, 8, 1), TO_REAL)
    # ITU-R 601-2: 299/1000 of red.
    assert np.allclose(sample, 76 / 255)


def test_files_come_in_the_order_of_their_names_and_others_are_left_alone(tmp_path: Path):
    np.save(tmp_path / "b.npy", np.full((2, *SHAPE), 0.5, np.float32))
    np.save(tmp_path / "a.npy", np.full(SHAPE, 255, np.uint8))
    np.save(tmp_path / "c.npy", np.full(SHAPE, -3.0))
    (tmp_path / "notes.txt").write_text("no image")
    samples = read_samples(tmp_path, SHAPE, TO_REAL)
    assert [float(sample.mean()) for sample in samples] == [1, 0.5, 0.5, -3]
    assert {sample.dtype for sample in samples} == {np.dtype(np.float32)}


def test_a_large_folder_is_not_read_to_its_end(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.zeros((MAX_SAMPLES - 1, 1, 1, 1), np.uint8))
    np.save(tmp_path / "b.npy", np.zeros((7, 1, 1, 1), np.uint8))
    (tmp_path / "c.png").write_bytes(b"never opened")
    assert len(read_samples(tmp_path, (1, 1, 1), TO_REAL)) == MAX_SAMPLES


def test_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(EdgepipeError, match="no calibration folder .*/absent"):
        read_samples(tmp_path / "absent", SHAPE, TO_REAL)


def test_an_empty_folder(tmp_path: Path):
    with pytest.raises(EdgepipeError, match="has no image .* and no .npy file"):
        read_samples(tmp_path, SHAPE, TO_REAL)


@pytest.mark.parametrize("name", ["broken.jpg", "broken.npy"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"\x93NUMPY\x01\x00 what is this")
    with pytest.raises(ImageError, match=f"{name} is no (image|array)"):
        read_samples(tmp_path, SHAPE, TO_REAL)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((8, 6, 3), np.float32), r"has shape \(8, 6, 3\): the model takes \(6, 8, 3\) or \(N, 6, 8, 3\)"),
        (np.zeros((3, 6, 8), np.float32), r"has shape \(3, 6, 8\)"),
        (np.zeros((0, 6, 8, 3), np.float32), r"has shape \(0, 6, 8, 3\)"),
        (np.zeros((6, 8), np.uint8), r"has shape \(6, 8\)"),
        (np.zeros(SHAPE, np.int64), "holds int64: expected uint8 pixels or floating-point"),
        (np.full(SHAPE, np.nan, np.float32), "holds NaN, infinity"),
        (np.full(SHAPE, 1e300), "holds NaN, infinity, or numbers beyond float32"),
    ],
)
def test_arrays_that_are_no_such_images(tmp_path: Path, array: np.ndarray, message: str):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(UnsupportedModel, match=message):
        read_samples(tmp_path, SHAPE, TO_REAL)


def test_pickled_arrays_are_never_opened(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(EdgepipeError, match=r"a\.npy is no array"):
        read_samples(tmp_path, SHAPE, TO_REAL)


def test_images_of_four_channels_need_arrays(tmp_path: Path):
    Image.new("RGBA", (8, 6)).save(tmp_path / "a.png")
    with pytest.raises(ImageError, match=r"takes 4 channels, .* is an image file: give a \.npy file"):
        read_samples(tmp_path, (6, 8, 4), TO_REAL)


def test_noise_is_the_same_for_the_same_seed():
    first, again, other = (smooth_noise((9, 10, 3), 3, seed, TO_REAL) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first[0], other[0])
    assert {sample.shape for sample in first} == {(1, 9, 10, 3)}
    assert all(sample.min() >= 0 and sample.max() <= 1 for sample in first)


def test_the_range_of_a_normalised_pixel():
    assert Normalization().range == (0, 1)
    lowest, highest = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).range
    assert lowest == pytest.approx(-0.485 / 0.229)
    assert highest == pytest.approx((1 - 0.406) / 0.225)

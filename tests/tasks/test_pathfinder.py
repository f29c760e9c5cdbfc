"""Pathfinder: labels by following the ink, nothing else that tells them, the published files."""

import dataclasses
import itertools

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from experiments.errors import DataError
from experiments.tasks import Pathfinder, PathfinderPatches
from experiments.tasks.pathfinder_canvas import Canvas
from experiments.tasks.pathfinder_images import GEOMETRIES, dashes_of, draw
from experiments.tasks.strokes import paint


def connected(images, row: int, geometry) -> bool:
    """By flood fill over the dashes as Pillow draws them, with every gap closed, on a large sheet
    that knows of no curves."""
    scale = 512 // geometry.size
    sheet = Image.new("L", (512, 512))
    pen = ImageDraw.Draw(sheet)
    for number, curve in enumerate(images.curves):
        if images.drawn[row, number]:
            for dash in dashes_of(curve[row : row + 1], geometry)[0]:
                pen.line([tuple(np.rint(scale * end)) for end in dash], fill=255, width=1)
    distance = ndimage.distance_transform_edt(np.asarray(sheet) == 0)
    # The ends of two dashes are at most gap + width apart; Pillow's are rounded.
    bridge = scale * (geometry.gap + geometry.width) / 2 + 1.5
    ink, _ = ndimage.label(distance <= bridge)
    a, b = np.rint(scale * images.dots[row]).astype(int)
    return 0 < ink[a[1], a[0]] == ink[b[1], b[0]]


@pytest.mark.parametrize(("size", "dashes"), [(16, 6), (32, 6), (32, 14), (64, 9), (128, 14)])
def test_the_label_is_whether_the_dots_are_connected(size, dashes):
    geometry = GEOMETRIES[size]
    images = draw(np.random.default_rng(1), 10, geometry, dashes)
    assert [connected(images, row, geometry) for row in range(20)] == [False, True] * 10


def test_the_pixels_alone_tell_the_label():
    images = draw(np.random.default_rng(0), 20, GEOMETRIES[128], 9)
    for row, pixels in enumerate(images.pixels):
        away = ndimage.distance_transform_edt(np.kron(pixels, np.ones((2, 2))) == 0)
        ink, _ = ndimage.label(away <= 2.3)
        a, b = np.rint(2 * images.dots[row]).astype(int)
        assert (ink[a[1], a[0]] == ink[b[1], b[0]]) == row % 2


def test_twins_have_the_same_dots_and_as_much_to_draw():
    geometry = GEOMETRIES[32]
    images = draw(np.random.default_rng(0), 30, geometry, 9)
    apart, together = (
        [x[i::2] for x in (images.dots, images.drawn, *images.curves)] for i in (0, 1)
    )
    for one, other in zip(apart[:2], together[:2]):
        np.testing.assert_array_equal(one, other)
    p, q = apart[0][:, 0], apart[0][:, 1]
    np.testing.assert_array_equal(together[2][:, [0, -1]], apart[0])
    np.testing.assert_array_equal(apart[2][:, 0], p)
    np.testing.assert_array_equal(apart[3][:, 0], q)
    # and the same first dash at each
    np.testing.assert_allclose(apart[2][:, 1], together[2][:, 1])
    np.testing.assert_allclose(apart[3][:, 1], together[2][:, -2])
    assert images.drawn[:, :2].all()
    assert all((0 <= c.min()) and (c.max() <= 31) for c in images.curves[:2])


WITHOUT = dataclasses.replace(GEOMETRIES[16], short=0)


@pytest.mark.parametrize("geometry", [GEOMETRIES[16], GEOMETRIES[32], WITHOUT])
def test_neither_dots_nor_ink_tell_the_label(geometry):
    images = draw(np.random.default_rng(0), 400, geometry, dashes=6)
    labels = np.arange(800) % 2
    distance = np.linalg.norm(images.dots[:, 0] - images.dots[:, 1], axis=1)
    ink = images.pixels.reshape(800, -1)
    features = [distance, ink.sum(1), (ink > 0).sum(1), ink.std(1)]
    features = np.column_stack([*features, images.dots.reshape(800, 4)])
    features = StandardScaler().fit_transform(features)
    for model in (LogisticRegression(), DecisionTreeClassifier(max_depth=4, random_state=0)):
        accuracy = model.fit(features[:400], labels[:400]).score(features[400:], labels[400:])
        assert abs(accuracy - 0.5) < 0.08  # three standard deviations of 400 guesses


def test_curves_keep_clear_of_each_other():
    geometry = GEOMETRIES[64]
    images = draw(np.random.default_rng(2), 8, geometry, 14)
    for row in range(16):
        curves = [c[row] for c, on in zip(images.curves, images.drawn[row]) if on]
        for i, one in enumerate(curves):
            for other in curves[:i]:
                gap = np.linalg.norm(one[:, None] - other[None], axis=-1).min()
                assert gap > geometry.clear - 1.5  # of a map whose cells are pixels


def test_curves_turn_by_bounded_angles():
    canvas = Canvas(40, GEOMETRIES[128])
    curve, grown = canvas.anywhere(np.random.default_rng(0), 14)
    steps = np.diff(curve[grown], axis=1)
    np.testing.assert_allclose(np.linalg.norm(steps, axis=-1), 7.5)
    turns = np.diff(np.unwrap(np.arctan2(steps[..., 1], steps[..., 0])), axis=1)
    assert grown.sum() > 30
    assert 0.7 < np.abs(turns).max() <= 0.8


@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_curves_that_found_no_way_never_leave_the_map(size):
    # Rows whose curves were all dead went on growing, and past the end of the map.
    canvas = Canvas(3, GEOMETRIES[size])
    canvas.taken[1:] = True
    curve, grown = canvas.anywhere(np.random.default_rng(0), 40)
    assert not grown[1:].any()
    assert curve.min() >= 0
    assert curve.max() <= size - 1


def test_strokes_are_painted_by_their_distance():
    random = np.random.default_rng(0)
    ends, value = random.uniform(-2, 11, (2, 3, 2, 2)), random.uniform(0.5, 1, (2, 3))
    images = np.zeros((2, 9, 9))
    paint(images, ends, 0.8, value)
    for row, y, x in np.ndindex(images.shape):
        covered = []
        for (a, b), v in zip(ends[row], value[row]):
            t = np.clip((np.array([x, y]) - a) @ (b - a) / ((b - a) @ (b - a)), 0, 1)
            away = np.hypot(*(a + t * (b - a) - [x, y]))
            covered.append(v * np.clip(0.8 + 0.5 - away, 0, 1))
        assert images[row, y, x] == pytest.approx(max(covered), abs=1e-12)


def test_labels_alternate_across_batches():
    task = Pathfinder(dashes=6, validation=7, test=5)
    labels = np.concatenate([task.batch(0, step, 3).labels for step in range(3)])
    assert labels.tolist() == [0, 1] * 4 + [0]


def test_a_training_set_of_its_own_comes_again_each_epoch():
    task = Pathfinder(resolution=16, dashes=6, train=8, validation=6, test=6)
    assert [task.size(split) for split in ("train", "validation", "test")] == [8, 6, 6]
    rows = lambda batch: {(t.tobytes(), int(y)) for t, y in zip(batch.tokens, batch.labels)}
    first, second = (rows(task.batch(0, step, 8)) for step in (0, 1))
    assert first == second == rows(task.examples("train", np.arange(8)))
    assert len(first) == 8
    assert not first & rows(task.examples("test", np.arange(6)))
    assert Pathfinder(train=0).size("train") is None


@pytest.mark.parametrize("batch_size", [3, 4])
def test_twins_follow_each_other_in_a_training_set_of_its_own(batch_size):
    task = Pathfinder(resolution=16, dashes=6, train=12, validation=6, test=6)
    of = {row.tobytes(): i for i, row in enumerate(task.examples("train", np.arange(12)).tokens)}
    batches = [task.batch(7, step, batch_size).tokens for step in range(24 // batch_size)]
    rows = np.array([of[row.tobytes()] for row in np.concatenate(batches)]).reshape(2, 6, 2)
    for epoch in rows:
        assert sorted(epoch[:, 0]) == [0, 2, 4, 6, 8, 10]
        assert (epoch[:, 1] == epoch[:, 0] + 1).all()
    assert rows[0].tolist() != rows[1].tolist()
    with pytest.raises(ValueError, match=r"^train: expected an even number, for twins, got 7"):
        Pathfinder(train=7)


def test_without_distractors_there_are_the_two_long_curves_alone():
    small = dict(resolution=16, dashes=6, validation=100, test=6)
    with_, without = (Pathfinder(distractors=x, **small) for x in (True, False))
    ink = lambda task: (task.examples("validation", np.arange(100)).tokens > 1).sum(1)
    assert ink(without).mean() < ink(with_).mean()
    assert draw(np.random.default_rng(0), 3, WITHOUT, 6).drawn.shape == (6, 2)
    with pytest.raises(ValueError, match=r"^distractors: expected True with data_dir, .*got False"):
        Pathfinder(data_dir="files", distractors=False)


def squares_of(pixels: np.ndarray, patch: int) -> np.ndarray:
    side = len(pixels)
    corners = itertools.product(range(0, side, patch), repeat=2)
    return np.stack([pixels[i : i + patch, j : j + patch].ravel() for i, j in corners])


@pytest.mark.parametrize("patch", [1, 2, 4, 8])
@pytest.mark.parametrize("train", [0, 6])
def test_patches_are_squares_of_the_same_images(patch, train):
    small = dict(resolution=16, dashes=6, train=train, validation=6, test=6)
    whole, cut = Pathfinder(**small), PathfinderPatches(patch=patch, **small)
    for pixels, batch in (
        (whole.examples("test", np.arange(6)), cut.examples("test", np.arange(6))),
        (whole.batch(0, 1, 5), cut.batch(0, 1, 5)),
    ):
        assert np.array_equal(batch.labels, pixels.labels)
        assert (batch.lengths == cut.length).all()
        for image, tokens in zip(pixels.tokens.reshape(-1, 16, 16), batch.tokens, strict=True):
            values = (tokens + 1) * 127.5 + 1
            np.testing.assert_allclose(values, squares_of(image, patch), atol=1e-4)


PIXELS = np.random.default_rng(0).integers(0, 256, (20, 32, 32), np.uint8)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "curv_baseline"
    (root / "metadata").mkdir(parents=True)
    for part in (0, 1):
        (root / f"imgs/{part}").mkdir(parents=True)
        lines = []
        for i in range(10):
            Image.fromarray(PIXELS[10 * part + i]).save(root / f"imgs/{part}/sample_{i}.png")
            lines.append(f"imgs/{part} sample_{i}.png {i} {i % 2} 1.8 6 0.5\n")
        (root / f"metadata/{part}.npy").write_text("".join(lines))
    return tmp_path


def test_reads_lras_files(folder):
    task = Pathfinder(dashes=6, data_dir=str(folder))
    assert [task.size(s) for s in ("train", "validation", "test")] == [16, 2, 2]
    parts = [task.examples(s, np.arange(task.size(s))) for s in ("train", "validation", "test")]
    tokens = np.concatenate([part.tokens for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    expected = {(PIXELS[i].astype(int) + 1).tobytes(): i % 10 % 2 for i in range(20)}
    assert expected == {t.astype(int).tobytes(): y for t, y in zip(tokens, labels)}
    assert sorted(task.batch(0, 0, 16).tokens.tolist()) == sorted(parts[0].tokens.tolist())
    assert task.fingerprint() != Pathfinder(dashes=6, validation=9).fingerprint()


def test_patches_are_cut_from_lras_files(folder):
    task = PathfinderPatches(dashes=6, patch=4, data_dir=str(folder))
    pixels = Pathfinder(dashes=6, data_dir=str(folder)).examples("test", np.arange(2))
    tokens = task.examples("test", np.arange(2)).tokens
    for image, found in zip(pixels.tokens.reshape(-1, 32, 32), tokens, strict=True):
        np.testing.assert_allclose((found + 1) * 127.5 + 1, squares_of(image, 4), atol=1e-4)


def test_images_of_no_bytes_are_left_out(folder):
    (folder / "curv_baseline/imgs/0/sample_3.png").write_bytes(b"")
    assert Pathfinder(dashes=6, data_dir=str(folder)).size("train") == 17


@pytest.mark.parametrize(
    ("file", "data", "problem"),
    [
        ("metadata/1.npy", "imgs/0 sample_0.png 0 2 1.8\n", r"1\.npy:1: expected .*label 0 or 1"),
        ("metadata/1.npy", "imgs/0 sample_0.png 0\n", r"1\.npy:1: expected 'folder"),
        ("metadata/1.npy", "imgs/0 sample_99.png 0 1\n", r"sample_99\.png: .*does not exist"),
        ("metadata/1.npy", "../.. a.png 0 1\n", r"1\.npy:1: expected a file inside"),
        ("metadata/1.npy", "/etc passwd 0 1\n", r"1\.npy:1: expected a file inside"),
        ("metadata/1.npy", "", r"1\.npy: .*empty"),
        ("imgs/0/sample_1.png", "GIF89a", r"sample_1\.png: expected a whole PNG"),
    ],
)
def test_broken_files_are_named(folder, file, data, problem):
    (folder / "curv_baseline" / file).write_text(data)
    with pytest.raises(DataError, match=problem):
        Pathfinder(dashes=6, data_dir=str(folder)).baselines()


def test_a_folder_of_labels_that_cannot_be_read_is_named(folder):
    labels = folder / "curv_baseline/metadata"
    labels.rename(folder / "elsewhere")
    labels.write_text("")
    with pytest.raises(DataError, match=r"metadata: expected a folder .*: Not a directory"):
        Pathfinder(dashes=6, data_dir=str(folder)).baselines()


def test_images_cut_off_or_of_another_size_are_named(folder):
    path = folder / "curv_baseline/imgs/1/sample_2.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"1/sample_2\.png: expected a whole PNG"):
        Pathfinder(dashes=6, data_dir=str(folder)).baselines()
    path.write_bytes(whole)
    with pytest.raises(DataError, match="expected 64x64 pixels, got 32x32"):
        Pathfinder(dashes=6, resolution=64, data_dir=str(folder)).baselines()


@pytest.mark.parametrize(
    "fields",
    [
        {"resolution": 33},
        {"dashes": 6.0},
        {"train": -1},
        {"data_dir": 1},
        {"distractors": 0},
    ],
)
def test_bad_fields_are_refused(fields):
    with pytest.raises(ValueError, match=f"^{next(iter(fields))}: expected .*, got "):
        Pathfinder(**fields)


@pytest.mark.parametrize("patch", [0, 3, 16, 2.0, True])
def test_patches_must_divide_the_image(patch):
    with pytest.raises(ValueError, match=r"^patch: expected one of 1, 2, 4, 8, got "):
        PathfinderPatches(patch=patch)

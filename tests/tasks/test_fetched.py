"""Text, retrieval and image: rows as the files have them, and files that will not do."""

import shutil

import numpy as np
import pytest
from small_files import CLASSES, PAIR_SIZES, REVIEW_SIZES, colours, pairs, review_lines, reviews

from experiments import evaluate, train
from experiments.errors import DataError
from experiments.learner import Learner
from experiments.tasks import Image, Retrieval, Text, retrieval
from experiments.validation import from_dict

SETTING = {
    "model": {"layers": 1, "width": 8, "heads": 2, "mlp_width": 8},
    "optimizer": {"learning_rate": 1e-2},
    "train": {"steps": 2, "batch_size": 8, "eval_batch_size": 16},
}
SIZES = {"train": 200, "validation": 100, "test": 60}


def everything(task, split):
    return task.examples(split, np.arange(task.size(split)))


def as_bytes(row, length) -> bytes:
    return bytes((row[:length] - 1).astype(np.uint8))


def test_text_is_the_bytes_of_each_review(tmp_path):
    task = Text(data_dir=str(reviews(tmp_path)), max_length=30, **REVIEW_SIZES)
    assert [task.size(split) for split in ("train", "validation", "test")] == [240, 20, 60]
    for splits, part in ((("train", "validation"), "train"), (("test",), "test")):
        batches = [everything(task, split) for split in splits]
        ours = sorted(
            (as_bytes(row, length), label)
            for b in batches
            for row, length, label in zip(b.tokens, b.lengths, b.labels)
        )
        files = [
            (p, label) for label in (0, 1) for p in (tmp_path / part / CLASSES[label]).glob("*")
        ]
        assert ours == sorted((p.read_bytes()[:30], label) for p, label in files)
        for b in batches:
            assert np.array_equal(b.tokens > 0, np.arange(30) < b.lengths[:, None])
    assert everything(task, "validation").labels.mean() == 0.5


def test_reviews_in_lines_are_those_in_folders(tmp_path):
    review_lines(tmp_path)
    folders = tmp_path / "folders"
    for part in ("train", "test"):
        lines = (tmp_path / f"{part}.tsv").read_text(encoding="utf-8").splitlines()
        for i, (label, text) in enumerate(line.split("\t") for line in lines):
            path = folders / part / {"1": "pos"}.get(label, label) / f"{i:03}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    of = lambda place: Text(data_dir=str(place), max_length=9, **REVIEW_SIZES)
    one, other = of(tmp_path), of(folders)
    assert one.fingerprint() == other.fingerprint()
    assert np.array_equal(one.batch(0, 0, 32).tokens, other.batch(0, 0, 32).tokens)
    assert as_bytes(everything(one, "test").tokens[0], 9) == "é test 0".encode()


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    """Excel and Notepad begin a file with one; the label was refused for it, which looks right."""
    of = lambda place: Text(data_dir=str(place), max_length=9, **REVIEW_SIZES)
    plain = review_lines(tmp_path)
    shutil.copytree(plain, marked := tmp_path / "marked")
    for path in marked.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert of(marked).fingerprint() == of(plain).fingerprint()
    path = pairs(tmp_path) / "new_aan_pairs.eval.tsv"
    path.write_bytes(b"\xef\xbb\xbf1\ta\tb\t\xef\xbb\xbfx\ty\n")
    batch = everything(Retrieval(data_dir=str(tmp_path), max_length=9, validation=1), "validation")
    assert batch.lengths.tolist() == [[4, 1]]  # within a line it is a character


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0\ta\n1\tb\n", r"test\.tsv, class neg: expected 30 reviews, got 1; .*again"),
        ("0\ta\n" * 30 + "1\tb\n" * 29, "class pos: expected 30 reviews, got 29"),
        ("0\ta\n1\t\n", ":2: expected a text, got none"),
        ("label\ttext\n", ":1: expected a label 0 or 1 or neg or pos, got 'label'"),
        ("0\ta\n0\n", ":2: expected 2 columns .*, got 1"),
        ("0\t3\ta\n", ":1: expected 2 columns .*, got 3"),
        ("0\ta\n1\t\xff\n", ":2: expected UTF-8, got byte 0xff"),
        ("0\ta\n1\tb", ":2: .*cut off"),
        ("", r"test\.tsv: .*empty"),
        (None, r"test\.tsv: .*not exist"),
    ],
)
def test_broken_lines_of_reviews_are_refused(text, problem, tmp_path):
    path = review_lines(tmp_path) / "test.tsv"
    path.unlink() if text is None else path.write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=problem):
        Text(data_dir=str(tmp_path), max_length=9, **REVIEW_SIZES).size("test")


def test_retrieval_is_the_bytes_of_both_texts(tmp_path):
    task = Retrieval(data_dir=str(pairs(tmp_path)), max_length=25, **PAIR_SIZES)
    batch = everything(task, "validation")
    lines = (tmp_path / "new_aan_pairs.eval.tsv").read_bytes().splitlines()
    assert batch.tokens.shape == (53, 2, 25)
    for line, tokens, lengths, label in zip(lines, batch.tokens, batch.lengths, batch.labels):
        words = line.split(b"\t")
        assert float(words[0]) == label
        assert [as_bytes(t, n) for t, n in zip(tokens, lengths)] == [w[:25] for w in words[3:]]


def test_an_empty_text_of_a_pair_has_length_0(tmp_path):
    path = pairs(tmp_path) / "new_aan_pairs.eval.tsv"
    path.write_text("1\ta\tb\t\tsome\n")
    task = Retrieval(data_dir=str(tmp_path), max_length=9, validation=1)
    batch = everything(task, "validation")
    assert batch.lengths.tolist() == [[0, 4]]


def test_image_is_the_luma_of_each_pixel(tmp_path):
    task = Image(data_dir=str(colours(tmp_path)), **SIZES)
    data = np.fromfile(tmp_path / "test_batch.bin", np.uint8).reshape(60, 3073)
    batch = everything(task, "test")
    assert np.array_equal(batch.labels, data[:, 0])
    for row in (0, 59):
        for place in (0, 1, 700, 1023):
            red, green, blue = (float(data[row, 1 + place + 1024 * c]) / 255 for c in range(3))
            grey = 0.2989 * red + 0.587 * green + 0.114 * blue
            assert batch.tokens[row, place] == int(grey * 255.5) + 1
    both = [everything(task, split).tokens for split in ("train", "validation")]
    assert len({row.tobytes() for row in np.concatenate(both)}) == 300


def test_white_is_white(tmp_path):
    path = colours(tmp_path) / "test_batch.bin"
    path.write_bytes((b"\x03" + b"\xff" * 3072 + b"\x04" + b"\x00" * 3072) * 30)
    tokens = everything(Image(data_dir=str(tmp_path), **SIZES), "test").tokens
    assert tokens[:2, 5].tolist() == [256, 1]


MAKERS = {Text: reviews, Retrieval: pairs, Image: colours}
MAKE = {
    Text: {"max_length": 30, **REVIEW_SIZES},
    Retrieval: {"max_length": 30, **PAIR_SIZES},
    Image: SIZES,
}


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_no_folder_or_an_archive_says_what_is_expected_and_from_where(kind, tmp_path):
    archive = tmp_path / "data.tar.gz"
    archive.write_bytes(b"\x1f\x8b")
    for data_dir, got in (("", "got none"), (tmp_path / "no", "not exist"), (archive, "unpack it")):
        with pytest.raises(DataError, match=rf"expected the folder .*https://.*{got}") as error:
            kind(data_dir=str(data_dir)).baselines()
        assert "\n" not in str(error.value)


BROKEN = [
    (Text, "train/pos/3_7.txt", b"", r"train/pos/3_7\.txt: .*empty"),
    (Retrieval, "new_aan_pairs.eval.tsv", b"", r"eval\.tsv: .*empty"),
    (
        Retrieval,
        "new_aan_pairs.eval.tsv",
        b"0\ta\tb\tc\td\n1\ta\tb\tc\n",
        r"tsv:2: expected 5 .* 4;",
    ),
    (Retrieval, "new_aan_pairs.eval.tsv", b"2.0\ta\tb\tc\td\n", r"tsv:1: expected a label 0 or 1"),
    (
        Retrieval,
        "new_aan_pairs.eval.tsv",
        b"0\ta\tb\tc\td\n1\t\xff",
        r"tsv:2: .*UTF-8, got byte 0xff",
    ),
    (
        Retrieval,
        "new_aan_pairs.eval.tsv",
        b"0\ta\tb\tc\td\n" * 52,
        r"eval\.tsv: expected 53 pairs, got 52; fetch .* again .* set the sizes",
    ),
    # a whole row but for its end, which looked like one
    (
        Retrieval,
        "new_aan_pairs.eval.tsv",
        b"0\ta\tb\tc\td\n" * 52 + b"0\ta\tb\tc\td",
        r":53: .*cut off",
    ),
    (Image, "data_batch_2.bin", b"\x01" * 3072, r"data_batch_2\.bin: expected a multiple of 3,073"),
    (Image, "data_batch_2.bin", b"\x01" * 3073, r"expected 300 images in .*, got 241"),
    (
        Image,
        "data_batch_2.bin",
        b"\x0a" * 3073,
        r"data_batch_2\.bin: expected labels 0\.\.9, got 10",
    ),
    (Image, "data_batch_2.bin", b"", r"data_batch_2\.bin: .*empty"),
]


@pytest.mark.parametrize(("kind", "file", "data", "problem"), BROKEN)
def test_a_broken_file_is_named(kind, file, data, problem, tmp_path):
    (MAKERS[kind](tmp_path) / file).write_bytes(data)
    with pytest.raises(DataError, match=problem):
        kind(data_dir=str(tmp_path), **MAKE[kind]).baselines()


@pytest.mark.parametrize(
    ("kind", "file"),
    [(Retrieval, "new_aan_pairs.eval.tsv"), (Image, "data_batch_5.bin"), (Text, "train/pos")],
)
def test_a_missing_file_is_named_with_its_origin(kind, file, tmp_path):
    path = MAKERS[kind](tmp_path) / file
    for inside in path.glob("*"):
        inside.unlink()
    path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(DataError, match=f"{file}: .*https://"):
        kind(data_dir=str(tmp_path), **MAKE[kind]).baselines()


@pytest.mark.parametrize("part", ["train/pos", "train/neg", "test/neg"])
def test_half_an_archive_of_reviews_is_refused(part, tmp_path):
    for path in (reviews(tmp_path) / part).glob("1*.txt"):
        path.unlink()
    whole, left = (130, 89) if "train" in part else (30, 19)
    with pytest.raises(DataError, match=f"{part}: expected {whole} .*, got {left}; .*unpack again"):
        Text(data_dir=str(tmp_path), max_length=30, **REVIEW_SIZES).content()


def test_a_folder_of_reviews_that_cannot_be_read_is_named(tmp_path):
    """Its reviews were told as missing: expected 130, got 0."""
    folder = reviews(tmp_path) / "train/pos"
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("")
    with pytest.raises(DataError, match=r"train/pos: expected a folder .*: Not a directory"):
        Text(data_dir=str(tmp_path), max_length=30, **REVIEW_SIZES).content()


@pytest.mark.parametrize("fields", [{"train": 22_501}, {"test": 3}, {"train": 0}])
def test_sizes_that_have_no_half_are_refused(fields):
    with pytest.raises(ValueError, match=f"^{next(iter(fields))}: expected an .*, got "):
        Text(**fields)


def test_bad_data_ends_a_run_with_code_4_before_anything_is_made(tmp_path, capsys):
    (pairs(tmp_path) / "new_aan_pairs.test.tsv").write_text("half a line")
    fields = {"name": "retrieval", "max_length": 9, "data_dir": str(tmp_path), **PAIR_SIZES}
    raw = {**SETTING, "task": fields}
    (tmp_path / "c.py").write_text(f"def get_config():\n    return {raw!r}\n")
    arguments = [f"--config={tmp_path / 'c.py'}", f"--workdir={tmp_path / 'run'}"]
    assert train.main(arguments) == 4
    message = capsys.readouterr().err
    assert message.startswith(f"error: {tmp_path}/new_aan_pairs.test.tsv:1: expected 5 columns")
    assert message.count("\n") == 1
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.slow
def test_a_run_whose_data_moved_finds_them_by_a_link(tmp_path, capsys):
    """Its folder is part of the configuration, though what defines the data is what it holds."""
    old, new = tmp_path / "old", tmp_path / "new"
    fields = {"name": "retrieval", "max_length": 9, "data_dir": str(old), **PAIR_SIZES}
    raw = {**SETTING, "task": fields}
    (tmp_path / "c.py").write_text(f"def get_config():\n    return {raw!r}\n")
    run = f"--workdir={tmp_path / 'run'}"
    again = [f"--config={tmp_path / 'c.py'}", run]
    old.mkdir()
    pairs(old)
    assert train.main(again) == 0
    assert evaluate.main([run]) == 0
    scores = capsys.readouterr().out.rpartition("\n{")[2]
    old.rename(new)
    retrieval.read.cache_clear()  # another process
    assert evaluate.main([run]) == 4
    assert f"if it moved since a run began, leave a link to it: ln -s NEW {old}" in (
        capsys.readouterr().err
    )
    assert train.main([*again, f"--config.task.data_dir={new}"]) == 5
    assert "a link to data that moved at its old place (ln -s)" in capsys.readouterr().err
    old.symlink_to(new)
    assert evaluate.main([run]) == 0
    assert capsys.readouterr().out.endswith(scores)
    assert train.main([*again, "--config.train.steps=4"]) == 5
    assert "ln -s" not in capsys.readouterr().err


def test_a_pair_is_learned_by_one_encoder(tmp_path):
    import jax

    fields = {"name": "retrieval", "max_length": 9, "data_dir": str(pairs(tmp_path)), **PAIR_SIZES}
    learner = Learner(from_dict({**SETTING, "task": fields}))
    batch = learner.experiment.task.batch(0, 0, 8)
    sums = jax.eval_shape(learner.eval_step, jax.eval_shape(learner.init).params, batch)
    assert sums["right"].shape == (8,)

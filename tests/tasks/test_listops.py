"""ListOps: values by an evaluator of its own, the drawing rule, the ladder, LRA's files."""

import statistics

import numpy as np
import pytest

from experiments.errors import DataError
from experiments.tasks import ListOps
from experiments.tasks.listops_trees import IDS, VOCABULARY, draw, evaluate

RULES = {
    "MIN": lambda *values: min(values),
    "MAX": lambda *values: max(values),
    "MED": lambda *values: int(statistics.median(values)),
    "SM": lambda *values: sum(values) % 10,
}
SIZES = {"train": 4, "validation": 2, "test": 2, "min_length": 0, "max_length": 20}
LINES = ["( ( ( [MAX 3 ) 4 ) ] )\t4", "7\t7"]


def by_python(words: list[str]) -> int:
    """Python's own parser in place of ours: [MIN 1 2 ] is MIN(1,2,)."""
    text = "".join(w[1:] + "(" if w[0] == "[" else ")," if w == "]" else w + "," for w in words)
    return eval(text.rstrip(","), RULES.copy())


def ids(text: str) -> list[int]:
    return [IDS[word] for word in text.split()]


def nesting(tokens: np.ndarray) -> np.ndarray:
    opens = (tokens >= IDS["[MIN"]) & (tokens < IDS["]"])
    return np.cumsum(opens.astype(int) - (tokens == IDS["]"]), axis=-1)


@pytest.mark.parametrize("bounds", [(0, 20), (16, 128), (500, 2000)])
def test_labels_are_the_values_of_the_expressions(bounds):
    low, high = bounds
    task = ListOps(min_length=low, max_length=high, train=1, validation=200, test=1)
    (batch,) = task.evaluation("validation", 200)
    assert low < batch.lengths.min() <= batch.lengths.max() < high
    for tokens, length, label in zip(batch.tokens, batch.lengths, batch.labels):
        assert by_python([VOCABULARY[i] for i in tokens[:length]]) == label
        assert evaluate(tokens[:length].tolist()) == label


def test_drawing_follows_the_rule():
    limits = {"min_length": 0, "max_length": 200, "max_depth": 3, "max_args": 4}
    data = draw(np.random.default_rng(0), 60_000, **limits)
    assert len(data.labels) == 60_000  # nothing is out of bounds here
    roots = data.tokens[:, 0]
    assert abs((roots >= IDS["[MIN"]).mean() - 0.25) < 0.01
    words = np.bincount(data.tokens.ravel(), minlength=len(VOCABULARY))
    assert np.ptp(words[1:11]) < 0.05 * words[1:11].mean()
    assert np.ptp(words[11:15]) < 0.05 * words[11:15].mean()
    assert words[11:15].sum() == words[15]
    assert nesting(data.tokens).max() == 2  # digits at depth 3 stand inside two operators
    flat = data.lengths[(nesting(data.tokens).max(axis=1) == 1)] - 2
    # A root of digits alone: n arguments, 2 to 4 alike, each a digit with probability 0.75.
    law = 0.75 ** np.arange(2, 5)
    share = np.bincount(flat, minlength=5)[2:] / flat.size
    assert np.abs(share - law / law.sum()).max() < 0.02


def test_no_expression_comes_twice_in_any_split():
    task = ListOps(min_length=0, max_length=6, train=300, validation=50, test=50)
    tokens = [task.examples(s, np.arange(task.size(s))).tokens for s in ("train", "validation")]
    tokens.append(task.examples("test", np.arange(50)).tokens)
    assert len({row.tobytes() for row in np.concatenate(tokens)}) == 400


def test_asking_for_more_than_there_are_is_refused():
    task = ListOps(min_length=0, max_length=3, train=1, validation=11, test=1)
    with pytest.raises(ValueError, match="validation: expected at most the 10 different"):
        task.baselines()


def test_evaluation_to_a_depth_leaves_deeper_operators_out():
    expression = ids("[MAX 2 [MIN 8 [SM 4 5 ] 7 ] 3 ]")
    assert [evaluate(expression, depth) for depth in (0, 1, 2, 3)] == [None, 3, 7, 7]
    assert evaluate(expression) == 7
    assert evaluate(ids("[MIN [MAX 4 5 ] [MED 1 2 ] ]"), 1) is None
    assert evaluate(ids("6")) == evaluate(ids("6"), 0) == 6


def test_the_ladder_is_the_published_one():
    # 16.9, 36.3, 48.5, 67.8, 79.6: one standard deviation of 2,000 rows is at most 1.1 points.
    rungs = list(ListOps(train=1).baselines().values())
    assert np.abs(np.array(rungs[1:]) - [0.169, 0.363, 0.485, 0.678, 0.796]).max() < 0.022


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("min_length", {"min_length": -1}),
        ("max_length", {"min_length": 10, "max_length": 11}),
        ("max_depth", {"max_depth": 0}),
        ("max_depth", {"max_depth": 3, "max_args": 4}),
        ("max_args", {"max_args": 1}),
        ("train", {"train": 0}),
        ("validation", {"validation": 1.5}),
        ("test", {"test": True}),
        ("data_dir", {"data_dir": 3}),
    ],
)
def test_bad_fields_are_refused(name, fields):
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        ListOps(**fields)


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train", 4), ("val", 2), ("test", 2)):
        lines = (LINES * 2)[:count]
        # csv.writer's line ends, as LRA writes them
        text = "\r\n".join(["Source\tTarget", *lines, ""])
        (tmp_path / f"basic_{name}.tsv").write_bytes(text.encode())
    return tmp_path


def test_reads_lras_files(folder):
    task = ListOps(**SIZES, data_dir=str(folder))
    (batch,) = task.evaluation("validation", 2)
    assert batch.tokens[:, :5].tolist() == [ids("[MAX 3 4 ]") + [0], [*ids("7"), 0, 0, 0, 0]]
    assert batch.lengths.tolist() == [4, 1]
    assert batch.labels.tolist() == [4, 7]
    assert task.batch(0, 0, 8).labels.tolist().count(7) == 4
    assert task.fingerprint() != ListOps(**SIZES).fingerprint()


def test_the_fingerprint_is_of_the_files_not_of_their_place(folder):
    task = ListOps(**SIZES, data_dir=str(folder))
    before = task.fingerprint()
    moved = folder.parent / f"{folder.name}-moved"
    folder.rename(moved)
    there = ListOps(**SIZES, data_dir=str(moved))
    assert there.fingerprint() == before
    with (moved / "basic_test.tsv").open("ab") as file:
        file.write(b"1\t1\r\n")
    assert there.fingerprint() != before


def test_a_missing_file_is_named_with_its_origin(folder):
    (folder / "basic_val.tsv").unlink()
    with pytest.raises(DataError, match=r"basic_val\.tsv.*lra_release"):
        ListOps(**SIZES, data_dir=str(folder)).baselines()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("( [MAX 3", "a label 0..9"),
        ("7\t", "a label 0..9"),
        ("7\t10", "a label 0..9"),
        ("7\tx", "a label 0..9"),
        ("( ( ( [MAX 3 ) 12 ) ] )\t4", "expected the words .* got '12'"),
        ("( ( ( [FIRST 3 ) 1 ) ] )\t3", "got '\\[FIRST'"),
        ("<pad>\t4", "padding"),
        ("\t4", "more than min_length=0"),
        ("[MAX " + "1 " * 18 + "]\t1", "fewer than max_length=20 tokens, got 20"),
        ("[MAX 3 4\t4", "brackets closed"),
        ("[MAX 3 ] 4\t4", "brackets closed"),
        ("3 4\t4", "brackets closed"),
        ("7\t8", "the expression's value 7 as its label, got 8"),
        ("[MED 2 [SM 4 5 ] 3 ]\t9", "value 3 as its label, got 9"),
        ("[MAX ]\t4", "arguments after each operator"),
        ("[MAX 4 [MIN ] ]\t4", "arguments after each operator"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(folder, line, problem):
    (folder / "basic_val.tsv").write_text(f"Source\tTarget\n{LINES[0]}\n{line}\n")
    with pytest.raises(DataError, match=rf"basic_val\.tsv:3: .*{problem}"):
        ListOps(**SIZES, data_dir=str(folder)).baselines()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ":1: expected the header"),
        ("Target\tSource\n7\t7\n7\t7\n", ":1: expected the header"),
        ("Source\tTarget\n7\t7\n", ":2: expected 2 expressions, the file ends after 1"),
        ("Source\tTarget\n7\t7\n7\t7", ":3: .*cut off"),
        ("Source\tTarget\n7\t7\n7\t7\n7\t7\n", ":4: expected 2 expressions, the file has more"),
        ("Source\tTarget\n7\t7\n\xff\t7\n", ":3: expected the words"),
    ],
)
def test_a_broken_file_is_refused(folder, text, problem):
    (folder / "basic_val.tsv").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=rf"basic_val\.tsv{problem}"):
        ListOps(**SIZES, data_dir=str(folder)).baselines()

"""Small data sets in the formats that are published, written where a test wants them."""

from pathlib import Path

import numpy as np

CLASSES = ("neg", "pos")
COUNTS = {"train": 130, "test": 30}  # reviews of each class
REVIEW_SIZES = {"train": 240, "validation": 20, "test": 60}
PAIRS = {"train": 200, "eval": 53, "test": 47}
PAIR_SIZES = {"train": 200, "validation": 53, "test": 47}
IMAGES = 60  # in each of six files


def reviews(folder: Path) -> Path:
    """As aclImdb is unpacked."""
    random = np.random.default_rng(0)
    for part, count in COUNTS.items():
        for name in CLASSES:
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                text = random.bytes(int(random.integers(1, 40)))
                (folder / part / name / f"{i}_7.txt").write_bytes(b"%03d " % i + text)
    return folder


def review_lines(folder: Path) -> Path:
    """Train.tsv and test.tsv, in no order of classes."""
    for part, count in COUNTS.items():
        rows = [f"{('neg', '1')[i % 2]}\té {part} {i}\n" for i in range(2 * count)]
        (folder / f"{part}.tsv").write_text("".join(rows), encoding="utf-8")
    return folder


def pairs(folder: Path) -> Path:
    """As tsv_data of Long Range Arena's release."""
    random = np.random.default_rng(0)
    for part, count in PAIRS.items():
        lines = []
        for i in range(count):
            one, other = ("é" * int(random.integers(1, 20)) + f" {part} {i} {j}" for j in (1, 2))
            lines.append(f"{float(i % 2)}\tP{i}\tQ{i}\t{one}\t{other}\n")
        (folder / f"new_aan_pairs.{part}.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def colours(folder: Path) -> Path:
    """As cifar-10-batches-bin."""
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        rows = random.integers(0, 256, (IMAGES, 3073), np.uint8)
        rows[:, 0] %= 10
        rows.tofile(folder / f"{name}.bin")
    return folder

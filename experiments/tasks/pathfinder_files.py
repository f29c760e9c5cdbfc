"""Long Range Arena's Pathfinder images: PNG files, named with their labels in lines of text."""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from experiments.errors import DataError
from experiments.tasks.base import rng
from experiments.tasks.files import folder, inside, matching, present

FOLDERS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
ORIGIN = (
    "Long Range Arena's release, https://storage.googleapis.com/long-range-arena/lra_release.gz"
)


class Labelled(NamedTuple):
    pixels: UInt8[np.ndarray, "N size*size"]
    labels: Int32[np.ndarray, "N"]


@functools.lru_cache(maxsize=1)
def read(data_dir: str, size: int, dashes: int) -> dict[str, Labelled]:
    """The splits of folder pathfinder{size}: 80, 10 and 10 percent in an order that is always the
    same. Files of no bytes are left out, as LRA does (its release has one). All is held in memory,
    size^2 bytes an image. Raises DataError."""
    name = FOLDERS[dashes]
    holding = f"{name}/metadata/*.npy and {name}/imgs/*/sample_*.png of pathfinder{size}"
    root = folder(data_dir, holding=holding, origin=ORIGIN) / name
    tables = matching(root / "metadata", "*.npy")
    if not tables:
        raise DataError(f"{root}/metadata: expected text files *.npy, there are none ({ORIGIN})")
    named = [entry for table in tables for entry in _lines(root, table)]
    named = [(path, label) for path, label in named if path.stat().st_size]
    if len(named) < 10:
        raise DataError(f"{root}: expected at least 10 images, got {len(named)} ({ORIGIN})")
    pixels = np.stack([_pixels(path, size) for path, _ in named])
    labels = np.array([label for _, label in named], np.int32)
    order, tenth = rng("pathfinder", "split").permutation(len(named)), len(named) // 10
    parts = {"validation": order[:tenth], "test": order[tenth : 2 * tenth]}
    parts["train"] = order[2 * tenth :]
    return {split: Labelled(pixels[rows], labels[rows]) for split, rows in parts.items()}


def _lines(root: Path, table: Path) -> list[tuple[Path, int]]:
    """Of each line `imgs/0 sample_0.png 0 1 ...` the image and, from column 4, the label."""
    entries = []
    # Bytes that are no text must end in an error that has a line number.
    text = present(table, origin=ORIGIN).read_text("ascii", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        words, where = line.split(" "), f"{table}:{number}"
        if len(words) < 4 or words[3] not in ("0", "1"):
            got = (
                f"expected 'folder image.png number label ...' with label 0 or 1, got {line[:60]!r}"
            )
            raise DataError(f"{where}: {got}")
        path = inside(root, f"{words[0]}/{words[1]}", where=where)
        if not path.is_file():
            raise DataError(f"{path}: expected this image of {where}, but it does not exist")
        entries.append((path, int(words[3])))
    return entries


def _pixels(path: Path, size: int) -> UInt8[np.ndarray, "size*size"]:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pathfinder's files are images: pip install pillow") from error
    try:
        with Image.open(path, formats=("PNG",)) as image:
            shape, pixels = image.size, np.asarray(image.convert("L"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: expected a whole PNG image: {error}") from None
    if shape != (size, size):
        raise DataError(f"{path}: expected {size}x{size} pixels, got {shape[0]}x{shape[1]}")
    return pixels.reshape(-1)

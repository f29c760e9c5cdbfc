"""Round-ended strokes on images, with soft edges."""

import itertools

import numpy as np
from jaxtyping import Float


def paint(
    images: Float[np.ndarray, "B size size"],
    ends: Float[np.ndarray, "B M 2 2"],
    radius: float,
    value: Float[np.ndarray, "B M"],
) -> None:
    """Raises each pixel to value times what a stroke covers of it, in place. A stroke is all that
    is nearer than radius to the line between its ends (x, y); one of no length is a dot. The cost
    is the strokes' areas, whatever the images' size."""
    rows, size, _ = images.shape
    start, line = ends[..., 0, :], ends[..., 1, :] - ends[..., 0, :]
    reach = int(np.ceil(np.sqrt(np.square(line).sum(-1)).max() / 2 + radius + 1))
    around = np.array([*itertools.product(range(-reach, reach + 1), repeat=2)])
    pixel = np.rint(start + line / 2)[:, :, None] + around  # [B, M, P, 2]
    from_start = pixel - start[:, :, None]
    along = np.einsum("bmpc,bmc->bmp", from_start, line)
    along = np.clip(along / np.maximum(np.square(line).sum(-1), 1e-9)[..., None], 0, 1)
    distance = np.sqrt(np.square(from_start - along[..., None] * line[:, :, None]).sum(-1))
    # A soft edge is a pixel wide, and a line thinner than a pixel fills none.
    covered = np.clip(radius + 0.5 - distance, 0, min(1, 2 * radius)) * value[..., None]
    inside = ((pixel >= 0) & (pixel < size)).all(-1) & (covered > 0)
    x, y = np.moveaxis(pixel[inside].astype(np.intp), -1, 0)
    row = np.broadcast_to(np.arange(rows)[:, None, None], inside.shape)[inside]
    np.maximum.at(images.reshape(-1), (row * size + y) * size + x, covered[inside])

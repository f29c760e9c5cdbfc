"""What the benchmark compares: a mechanism of ours, its pattern, its oracle and its peers."""

import dataclasses
from collections.abc import Callable

from attn import MECHANISMS, Causal, Mask, Mechanism, Window
from experiments.measure import peers


@dataclasses.dataclass(frozen=True)
class Suite:
    """`seen` is the whole pattern, for peers and oracle; the mechanism is called with `mask`."""

    title: str
    mechanism: Mechanism
    mask: Mask
    seen: Mask
    oracle: Callable
    lengths: tuple[int, ...]
    batch: int
    against: dict[str, int]  # peers, each with the longest length that it has memory for


def suites() -> dict[str, Suite]:
    return {
        "softmax": Suite(
            "causal softmax",
            MECHANISMS["softmax"](),
            Causal(),
            Causal(),
            peers.softmax_oracle,
            (512, 2048, 4096),
            2,
            {"jax.nn": 4096, "flax.linen": 4096, "flax.nnx": 4096, "torch": 16384},
        ),
        "window": Suite(
            "window of 128 keys, causal",
            MECHANISMS["window"](left=127, right=0),
            Causal(),
            Window(127, 0),
            peers.softmax_oracle,
            (2048, 4096, 8192, 16384, 32768),
            1,
            {"jax.nn": 8192, "flax.linen": 8192, "torch": 8192},
        ),
        "linear": Suite(
            "causal linear attention, elu + 1",
            MECHANISMS["linear"](),
            Causal(),
            Causal(),
            peers.linear_oracle,
            (4096, 8192, 16384, 32768, 65536),
            1,
            {"token scan": 8192},
        ),
    }

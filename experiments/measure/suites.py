"""What the benchmark can measure, by name."""

from collections.abc import Iterator
from typing import Protocol

from attn import MECHANISMS, Causal, Window
from experiments.measure import oracle
from experiments.measure.attention import Attention
from experiments.measure.decoding import Decoding
from experiments.measure.linearized import Linearized
from experiments.measure.masking import Masking
from experiments.measure.options import Options
from experiments.measure.sharding import Sharding
from experiments.measure.turns import MODES, Row


class Suite(Protocol):
    """`rows` yields the rows of one group of contenders at a time."""

    title: str
    note: str
    against: dict[str, int]

    def rows(self, options: Options) -> Iterator[list[Row]]: ...


def suites() -> dict[str, Suite]:
    dense = {"jax.nn": 4096, "flax.linen": 4096, "flax.nnx": 4096}
    return {
        "softmax": Attention(
            "causal softmax",
            MECHANISMS["softmax"](),
            Causal(),
            Causal(),
            oracle.Softmax(Causal()),
            (512, 1024, 2048, 4096, 8192, 16384),
            2,
            {**dense, "torch": 16384, "torch flex": 16384},
            dtypes=("float32", "bfloat16"),
            heads=((4, 4), (8, 2)),
            widths=(64, 128),
        ),
        "memory": Attention(
            "memory of causal softmax",
            MECHANISMS["softmax"](),
            Causal(),
            Causal(),
            oracle.Softmax(Causal()),
            (4096, 65536),
            1,
            dense,
            modes=MODES[1:],
            rounds=1,
            note="One run each: look at the bytes. Target: under 3 GB in all at T = 65,536.",
        ),
        "decode": Decoding(),
        "masks": Masking(),
        "sharded": Sharding(),
        "window": Attention(
            "window of 128 keys, causal",
            MECHANISMS["window"](left=127, right=0),
            Causal(),
            Window(127, 0),
            oracle.Softmax(Window(127, 0)),
            (2048, 4096, 8192, 16384, 32768),
            1,
            {"jax.nn": 8192, "flax.linen": 8192, "torch": 8192, "torch flex": 32768},
        ),
        "linear": Attention(
            "causal linear attention, elu + 1",
            MECHANISMS["linear"](),
            Causal(),
            Causal(),
            oracle.linear,
            (512, 4096, 16384, 65536, 131072),
            2,
            {"token scan": 8192, "fla": 65536},
        ),
        "linearized": Linearized(),
    }

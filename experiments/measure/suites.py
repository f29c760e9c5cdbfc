"""What the benchmark can measure, by name."""

import math
from collections.abc import Iterator
from typing import Protocol

from attn import FULL, MECHANISMS, Causal, Window
from experiments.measure import oracle
from experiments.measure.attention import Attention
from experiments.measure.decoding import Decoding
from experiments.measure.linearized import Linearized
from experiments.measure.masking import Masking
from experiments.measure.options import Options
from experiments.measure.sharding import Sharding
from experiments.measure.sparse import Sparse
from experiments.measure.turns import MODES, Row

# settings by name, at T tokens, and what their papers claim
PATTERNS = {
    "window": lambda T: MECHANISMS["window"](left=255, right=0),
    "global_window": lambda T: MECHANISMS["global_window"](window=128),
    "bigbird": lambda T: MECHANISMS["bigbird"](),
    "strided": lambda T: MECHANISMS["strided"](),
    "fixed": lambda T: MECHANISMS["fixed"](),
    "sinks": lambda T: MECHANISMS["sinks"](),
    "dilated": lambda T: MECHANISMS["dilated"](segments=(512, 2048), rates=(1, 4)),
    "softmax": lambda T: MECHANISMS["softmax"](),
}
PATTERN_CLAIMS = {
    **dict.fromkeys(("window", "global_window", "bigbird", "sinks", "dilated"), "T"),
    **dict.fromkeys(("strided", "fixed"), "T^1.5"),
    "softmax": "T^2",
}
CONTENT = {
    "reformer": lambda T: MECHANISMS["reformer"](buckets=64, rounds=1, chunk=64),
    "routing": lambda T: MECHANISMS["routing"](clusters=math.isqrt(T), window=math.isqrt(T)),
    "sinkhorn": lambda T: MECHANISMS["sinkhorn"](block_size=64),
    "moba": lambda T: MECHANISMS["moba"](block_size=128, top=4),
    "nsa": lambda T: MECHANISMS["nsa"](),
    "hierarchical": lambda T: MECHANISMS["hierarchical"](),
    "linformer": lambda T: MECHANISMS["linformer"](features=128),
    "nystrom": lambda T: MECHANISMS["nystrom"](landmarks=64),
    "luna": lambda T: MECHANISMS["luna"](length=64),
    "abc": lambda T: MECHANISMS["abc"](slots=64),
}
CONTENT_CLAIMS = {
    "reformer": "T log(T)",
    **dict.fromkeys(("hierarchical", "linformer", "nystrom", "luna", "abc"), "T"),
    "routing": "T^1.5",
    "moba": "T and a router of T^2 / 128",
    "nsa": "T and a compressed branch of T^2 / 16",
    "sinkhorn": "T and a sorter of T^2 / 64",
}


class Suite(Protocol):
    """`rows` yields the rows of one group of contenders at a time, of which `attn` is `ours`, a key
    of MECHANISMS."""

    title: str
    note: str
    ours: str
    against: dict[str, int]

    def rows(self, options: Options) -> Iterator[list[Row]]: ...


def all_peers() -> list[str]:
    """The names of all that any suite is timed against."""
    return sorted({peer for suite in suites().values() for peer in suite.against})


def suites() -> dict[str, Suite]:
    dense = {"jax.nn": 4096, "flax.linen": 4096, "flax.nnx": 4096}
    fused = {"cudnn": 65536}
    # drawn over one length, so that the pattern is one static mask: shorter sequences are its start
    bigbird = MECHANISMS["bigbird"](length=16384)
    (blocks,) = bigbird.patterns(16384, 16384)
    return {
        "softmax": Attention(
            "causal softmax",
            MECHANISMS["softmax"](),
            Causal(),
            Causal(),
            oracle.Softmax(Causal()),
            (512, 1024, 2048, 4096, 8192, 16384),
            2,
            {**dense, "torch": 16384, "torch flex": 16384, **fused, "tokamax": 65536},
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
            "window of 256 keys, causal",
            MECHANISMS["window"](left=255, right=0),
            Causal(),
            Window(255, 0),
            oracle.Softmax(Window(255, 0)),
            (2048, 4096, 8192, 16384, 32768),
            1,
            {"jax.nn": 8192, "flax.linen": 8192, "torch": 8192, "torch flex": 32768, **fused},
        ),
        "bigbird": Attention(
            "BigBird's blocks",
            bigbird,
            FULL,
            blocks,
            oracle.Softmax(blocks),
            (2048, 4096, 8192, 16384),
            1,
            {"torch": 4096, "torch flex": 16384},
            note="Blocks of 64: one neighbour on each side, two global ones and three random ones "
            "a row, drawn over 16,384 tokens; shorter sequences see those that lie within them.",
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
        "sparse": Sparse(
            "sparse patterns",
            PATTERNS,
            PATTERN_CLAIMS,
            (2048, 4096, 16384, 65536),
            longest={"softmax": 16384},
        ),
        "content": Sparse(
            "content-based and compressed",
            CONTENT,
            CONTENT_CLAIMS,
            (512, 2048, 4096, 8192, 16384, 32768),
            judged=512,  # some definitions are T x T arrays by the dozen
            modes=MODES[:1],
        ),
    }

"""What the papers claim of one layer: work, steps in a row and the longest path between two tokens.

Formulas of the length T, as in table 1 of Vaswani et al. 2017 (arXiv:1706.03762); the width d and
settings (named as in the records) stand in them too. A path that a paper does not state is what its
definition says at once; where that depends on the data there is none. Files of the variants name
the papers.
"""

import dataclasses
import math
import re

# what a formula may say of T; all else in it is constant
GROWTHS = {
    "T^2": lambda T: T**2,
    "T": lambda T: T,
    "sqrt(T)": math.sqrt,
    "log(T)": math.log,
}
FACTOR = re.compile("|".join(map(re.escape, GROWTHS)))
PLUS = re.compile(r"\+(?![^(]*\))")  # outside of brackets, in which there is no T


@dataclasses.dataclass(frozen=True)
class Claim:
    """A formula with a sum grows between its terms; which leads is a matter of constants."""

    work: str
    steps: str
    path: str | None


def growths(formula: str, T: float) -> list[float]:
    """How each term of a formula grows: the product of its factors with T."""
    terms = PLUS.split(formula)
    return [math.prod(GROWTHS[factor](T) for factor in FACTOR.findall(x)) for x in terms]


DENSE = Claim("T^2 d", "1", "1")
STATE = Claim("T d^2 / h", "1", "1")
FEATURES = Claim("T m d", "1", "1")
DELTA = Claim("T d^2 / h", "T / chunk", "T")
ROWS = Claim("T m d", "1", "1")
NEAR = Claim("T w d", "1", "T / w")
HUB = Claim("T w d", "1", "1")
ROOT = Claim("T sqrt(T) d", "1", "1")
RECURRENT = Claim("T d^2", "T", "T")
NO_PATH = None

CLAIMS: dict[str, Claim] = {
    **dict.fromkeys(
        (
            "softmax",
            "additive",
            "luong",
            "sigmoid",
            "relu",
            "synthesizer",
            "differential",
            "forgetting",
            "latent",
        ),
        DENSE,
    ),
    "talking_heads": Claim("T^2 (d + h^2)", "1", "1"),
    **dict.fromkeys(("linear", "cosformer", "hedgehog", "efficient"), STATE),
    **dict.fromkeys(("performer", "rfa"), FEATURES),
    "based": Claim("T (d^3 / h^2 + w d)", "1", "1"),
    # all of these have a parallel form, by which they are trained, and a recurrent one
    **dict.fromkeys(("retention", "lightning", "gla", "mamba2", "hgrn2"), STATE),
    "rwkv6": Claim("T d^2 / h", "T", "T"),
    **dict.fromkeys(("delta_net", "gated_delta_net", "kda"), DELTA),
    "rwkv7": Claim("T d^2 / h", "T", "T"),
    **dict.fromkeys(("window", "block_sparse", "sinks"), NEAR),
    **dict.fromkeys(("global_window", "bigbird"), HUB),
    **dict.fromkeys(("strided", "fixed", "axial"), ROOT),
    "local_2d": Claim("T r^2 d", "1", "sqrt(T) / r"),
    "dilated": Claim("T w d", "1", "log(T)"),
    "logsparse": Claim("T log(T) d", "1", "log(T)"),
    "hierarchical": Claim("T b d", "1", "1"),
    "reformer": Claim("T log(T) d", "1", NO_PATH),
    "routing": Claim("T sqrt(T) d", "1", NO_PATH),
    "sinkhorn": Claim("T^2 d / b + T b d", "1", "1"),
    "topk": Claim("T^2 d", "1", NO_PATH),
    "moba": Claim("T^2 d / b + T k b d", "1", NO_PATH),
    "nsa": Claim("T^2 d / s + T (k b + w) d", "1", "1"),
    "quest": Claim("T^2 d / b + T k b d", "1", NO_PATH),
    **dict.fromkeys(("linformer", "nystrom", "set", "luna", "abc"), ROWS),
    "pooled": Claim("T^2 d / s", "1", "1"),
    "poolingformer": Claim("T (w + u / s) d + T d^2 / h", "1", "T / u"),
    **dict.fromkeys(("lstm", "gru"), RECURRENT),
    # the log_k(T) of table 1 is for kernels dilated ever more, layer after layer
    "conv": Claim("k T d^2", "1", "T / k"),
    "depthwise_conv": Claim("k T d", "1", "T / k"),
    "fnet": Claim("T log(T) d", "1", "1"),
    "average": Claim("T d", "1", "1"),
}

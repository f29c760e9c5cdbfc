"""A mechanism of ours against its peers on the same inputs, over lengths, dtypes, heads, widths."""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from attn import Mask, Mechanism, Softmax, picked
from experiments.config import name_of
from experiments.measure import cost, fla_peers, oracle, turns
from experiments.measure.options import Options
from experiments.measure.peers import PEERS
from experiments.measure.torch_peers import TORCH_PEERS
from experiments.measure.turns import MODES, OURS, Contender, Group, Ready, Row, Unavailable
from experiments.measure.verdict import judge

IN_TORCH = TORCH_PEERS | {"fla": fla_peers.fla}
PRODUCTS = {MODES[0]: 2, MODES[1]: 7}  # matrix products of a softmax: 2 forward, 5 backward


@dataclasses.dataclass(frozen=True)
class Attention:
    """`seen` is the whole pattern, for peers and oracle; the mechanism is called with `mask`."""

    title: str
    mechanism: Mechanism
    mask: Mask
    seen: Mask
    oracle: oracle.Oracle
    lengths: tuple[int, ...]
    batch: int
    against: dict[str, int]  # peers, each with the longest length it is asked for
    dtypes: tuple[str, ...] = ("float32",)
    heads: tuple[tuple[int, int], ...] = ((4, 4),)
    widths: tuple[int, ...] = (64,)
    modes: tuple[str, ...] = MODES
    rounds: int | None = None  # in place of the options'
    note: str = ""

    @property
    def ours(self) -> str:
        return name_of(self.mechanism)

    def rows(self, options: Options) -> Iterator[list[Row]]:
        for group in self.groups(options):
            yield turns.measure(group, options, self.rounds)

    def groups(self, options: Options) -> Iterator[Group]:
        own = {"dtypes": self.dtypes, "heads": self.heads, "widths": self.widths}
        for shape in turns.shapes(options, self.batch, self.lengths, **own):
            inputs = shape.inputs()
            verdict = judge(self.oracle, inputs[0], shape.dtype)
            for mode in self.modes:
                names = options.peers(self.against)
                contender = lambda prepare, ours=False: Contender(
                    prepare, verdict, ours, self.work(shape, mode)
                )
                ours = functools.partial(self.contender, shape, inputs, mode)
                others = {
                    fla_peers.contender(name): contender(
                        functools.partial(peer, name, self.against[name], self.seen, inputs, mode)
                    )
                    for name in names
                }
                yield Group(labels(shape, mode), {OURS: contender(ours, ours=True)} | others)

    def contender(self, shape: cost.Shape, inputs: list[tuple], mode: str) -> Ready:
        attend, arrays = cost.attention(self.mechanism, shape, self.mask)
        softmax = type(self.mechanism) is Softmax
        facts = runs(shape, mask=self.mask) if softmax else {}
        return turns.compiled(attend, inputs, mode, arrays, **facts)

    def work(self, shape: cost.Shape, mode: str) -> float | None:
        """FLOPs that the visible pairs need; None where the definition is no softmax over them."""
        softmax = isinstance(self.oracle, oracle.Softmax)
        return needed(shape, self.seen, mode) if softmax else None


def peer(name: str, longest: int, mask: Mask, inputs: list[tuple], mode: str) -> Ready:
    """Another's attention. Raises Unavailable beyond the longest T it is asked for."""
    T = inputs[0][0].shape[1]
    if T > longest:
        raise Unavailable(f"not beyond T = {longest:,}, for its memory and time")
    if name in IN_TORCH:
        return IN_TORCH[name](mask, inputs, mode)
    attend = PEERS[name](mask, T)
    return turns.compiled(lambda q, k, v, _: attend(q, k, v), inputs, mode)


def needed(shape: cost.Shape, mask: Mask, mode: str) -> float:
    """FLOPs of softmax attention over the pairs that the mask shows."""
    return 2 * PRODUCTS[mode] * pairs(mask, shape.T) * shape.B * shape.N * shape.H


def pairs(mask: Mask, T: int) -> float:
    """How many pairs (i, j) a mask shows, a mean over its batch rows."""
    return mask.pairs(T, T) if jax.tree.leaves(mask) else _static_pairs(mask, T)


@functools.cache
def _static_pairs(mask: Mask, T: int) -> float:
    return mask.pairs(T, T)


def labels(shape: cost.Shape, mode: str) -> dict[str, object]:
    """What every row says of its shape."""
    names = {"T": shape.T, "mode": mode, "dtype": shape.dtype, "batch": shape.B}
    return names | {"heads": shape.N, "kv_heads": shape.K, "width": shape.H}


def runs(shape: cost.Shape, **options) -> dict[str, str]:
    """Which implementation `dot_product_attention` picks, and its blocks."""
    q, k = (
        jax.ShapeDtypeStruct((shape.B, shape.T, n, shape.H), jnp.dtype(shape.dtype))
        for n in (shape.N, shape.K)
    )
    name = picked(q, k, k, **options)
    return {
        "implementation": name,
        "blocks": _blocks(shape, options) if name == "blockwise" else "",
    }


def _blocks(shape: cost.Shape, options: dict) -> str:
    # not public: a benchmark of another version of attn does without
    try:
        from attn._forms import choose

        form, sizes = choose(options["mask"], shape.T, shape.T, shape.N, shape.B)
        return f"{form} {' x '.join(map(str, sizes))}"
    except (ImportError, TypeError):
        return ""

"""Every linearized variant beside `linear`, exact softmax and what others run, causal."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from attn import MECHANISMS, Causal, Mechanism, Softmax
from experiments.measure import cost, turns
from experiments.measure.attention import labels, peer
from experiments.measure.flops import count
from experiments.measure.options import Options
from experiments.measure.turns import MODES, OURS, Contender, Group, Row
from experiments.measure.verdict import Verdict, worst


@dataclasses.dataclass(frozen=True)
class Linearized:
    """`variants` are keys of MECHANISMS; a variant is judged up to `judged` tokens."""

    title: str = "linearized variants, causal"
    note: str = (
        "`attn` is `linear` (elu + 1); the others are our variants by their keys in MECHANISMS, "
        "with their default settings, and peers. Gradients are those of q, k, v and of each gate. "
        "A variant is held against its own token loop in float64, beyond 16,384 tokens it is not."
    )
    ours: str = "linear"
    variants: tuple[str, ...] = (
        "performer", "retention", "mamba2", "gla", "delta_net", "gated_delta_net", "kda", "softmax",
    )  # fmt: skip
    against: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"token scan": 8192, "fla": 16384}
    )
    lengths: tuple[int, ...] = (512, 4096)
    judged: int = 16384
    modes: tuple[str, ...] = MODES

    def rows(self, options: Options) -> Iterator[list[Row]]:
        every = itertools.product(turns.shapes(options, 2, self.lengths), self.modes)
        for shape, mode in every:
            inputs = shape.inputs()
            ours = {OURS: self.ours} | {name: name for name in self.variants}
            contenders = {
                name: self.variant(MECHANISMS[key](), shape, inputs, mode)
                for name, key in ours.items()
            }
            judge = functools.partial(_judge, MECHANISMS["linear"](), shape, inputs[0], {})
            for name in options.peers(self.against):
                prepare = functools.partial(peer, name, self.against[name], Causal(), inputs, mode)
                contenders[name] = Contender(prepare, judge if shape.T <= self.judged else None)
            yield turns.measure(Group(labels(shape, mode), contenders), options)

    def variant(self, mechanism: Mechanism, shape: cost.Shape, inputs, mode: str) -> Contender:
        attend, arrays = cost.attention(mechanism, shape, Causal())
        judge = functools.partial(_judge, mechanism, shape, inputs[0], arrays)
        known = shape.T <= self.judged and not isinstance(mechanism, Softmax)
        work = count(attend, *inputs[0][:3], arrays).flops
        return Contender(
            lambda: turns.compiled_with_gates(attend, inputs, mode, arrays),
            judge if known else None,
            ours=True,
            work=work * (1 if mode == MODES[0] else 3),
        )


def _judge(mechanism, shape, inputs, arrays, results: Sequence[np.ndarray]) -> Verdict:
    """The last batch row, all heads, against the token loop."""
    with jax.enable_x64(True):
        exact = truth(mechanism, inputs, arrays)
    return worst([np.asarray(x[-1], np.float64) for x in results[:4]], exact, shape.dtype)


def truth(mechanism: Mechanism, inputs: tuple, arrays: dict) -> list[np.ndarray]:
    """The output, and the gradients of q, k and v, of the last batch row by its definition token
    after token, in the dtype of the caller's widest float."""
    wide = lambda x: jnp.asarray(np.asarray(x, np.float64))
    gates = mechanism.gates(num_heads=1, num_kv_heads=1, head_dim=1)
    more = {name: wide(x[-1:] if name in gates else x) for name, x in arrays.items()}
    loop = lambda q, k, v: mechanism.loop(q, k, v, **more)
    qkvg = (wide(x[-1:].astype(jnp.float32)) for x in inputs)
    return [np.asarray(x[0]) for x in jax.jit(cost.forward_backward(loop))(*qkvg)]

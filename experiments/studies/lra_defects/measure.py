"""Receptive fields from Jacobians, and what each defect changes, published beside ours."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import attn
from experiments.studies.lra_defects import published


@dataclasses.dataclass(frozen=True)
class Sizes:
    """One sequence of `length` tokens; `block` is also a bucket's chunk."""

    length: int = 64
    block: int = 8
    width: int = 16
    features: int = 64
    draws: int = 5


def field(function, v: Float[Array, "T H"]) -> Float[np.ndarray, "T T"]:
    """How much output i depends on value j: the norm of the Jacobian's block (i, j)."""
    jacobian = jax.jacrev(function)(v)  # [T, D, T, H]
    return np.asarray(jnp.sqrt((jacobian**2).sum((1, 3))))


def inputs(s: Sizes, seed: int):
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (s.length, s.width)) for key in keys]


def alone(mechanism: attn.Mechanism, mask=attn.FULL, **learned):
    """A mechanism on one sequence and one head."""
    one = lambda x: x[:, None]
    return lambda q, k, v: mechanism(one(q), one(k), one(v), mask=mask, **learned)[:, 0]


def sizes_of(mechanism, s: Sizes, seed: int):
    widths = {"head_dim": s.width, "value_dim": s.width, "max_length": s.length}
    return mechanism.init(jax.random.key(seed), num_heads=1, num_kv_heads=1, **widths)


def local(s: Sizes, seed: int) -> dict:
    """The share of what a token sees that is its own block."""
    q, k, v = inputs(s, seed)
    ours = alone(attn.BlockSparse(masks=attn.Fixed(s.block, 0)))
    fields = {
        "published": field(lambda v: published.local(q, k, v, block=s.block), v),
        "ours": field(lambda v: ours(q, k, v), v),
    }
    i = np.arange(s.length) // s.block
    own = i[:, None] == i
    return {"fields": fields, "own block": {n: x[own].sum() / x.sum() for n, x in fields.items()}}


def sinkhorn(s: Sizes, seed: int) -> dict:
    """The gradient of the sorting network, relative to that of the values."""
    q, k, v = inputs(s, seed)
    blocks = s.length // s.block
    net = jax.random.normal(jax.random.key(seed + 1), (s.width, blocks)) * s.width**-0.5
    mechanism = attn.Sinkhorn(block_size=s.block)
    theirs = lambda v, net: published.sinkhorn(q, k, v, net, block=s.block)
    ours = lambda v, sorting: alone(mechanism, sorting=sorting)(q, k, v)
    both = {"published": (theirs, net), "ours": (ours, sizes_of(mechanism, s, seed)["sorting"])}
    weigh = jax.random.normal(jax.random.key(seed + 2), v.shape)
    fields, gradients = {}, {}
    for name, (call, learned) in both.items():
        loss = lambda v, learned, call=call: (weigh * call(v, learned)).sum()
        to_v, to_net = jax.grad(loss, argnums=(0, 1))(v, learned)
        fields[name] = field(lambda v, call=call, learned=learned: call(v, learned), v)
        gradients[name] = float(jnp.linalg.norm(to_net) / jnp.linalg.norm(to_v))
    return {"fields": fields, "gradient of the sorter": gradients}


def reformer(s: Sizes, seed: int) -> dict:
    """How sharp the logits are, how alike the hashes of two layers, and what padding changes."""
    q, _, v = inputs(s, seed)
    buckets = s.length // s.block
    mechanism = attn.Reformer(buckets=buckets, rounds=1, chunk=s.block, shared_qk=True)
    layers = [sizes_of(mechanism, s, seed + n)["rotations"] for n in (1, 2)]
    call = lambda v, rotations=layers[0], mask=attn.FULL: alone(
        mechanism, mask, rotations=rotations
    )(q, q, v)
    theirs = lambda v: published.reformer(q, v, buckets=buckets)
    fields = {"published": field(theirs, v), "ours": field(call, v)}
    hashed = lambda r: np.asarray(jnp.argmax(jnp.concatenate([q @ r, -q @ r], -1), -1))
    first, second = (hashed(r[0, 0]) for r in layers)
    same = lambda a, b: float((together(a) == together(b))[~np.eye(s.length, dtype=bool)].mean())
    again = np.asarray(published.reformer_buckets(q, buckets))
    # the last block is padding: its values are others in the second run
    real = s.length - s.block
    other = v.at[real:].add(1.0)
    change = lambda call: float(jnp.abs(call(other) - call(v))[:real].max())
    masked = lambda v: call(v, mask=attn.Padding(jnp.int32(real)))
    return {
        "fields": fields,
        "largest weight": {n: float(np.mean(x.max(1) / x.sum(1))) for n, x in fields.items()},
        "pairs alike in two layers": {"published": same(again, again), "ours": same(first, second)},
        "change by padding": {"published": change(theirs), "ours": change(masked)},
    }


def together(buckets):
    return buckets[:, None] == buckets


def performer(s: Sizes, seed: int) -> dict:
    """What the outputs of the first half are when the keys of the second are ten times as large."""
    q, k, v = inputs(s, seed)
    projection = jnp.asarray(attn.orthogonal_features(seed, s.features, s.width))
    mechanism = attn.Performer(features=s.features, seed=seed)
    ours = alone(mechanism, attn.Causal())
    calls = {
        "published": lambda k, v: published.performer(q, k, v, projection),
        "ours": lambda k, v: ours(q, k, v),
    }
    half = s.length // 2
    later = k.at[half:].multiply(10.0)
    change = {n: float(jnp.abs(f(later, v) - f(k, v))[:half].max()) for n, f in calls.items()}
    size = {n: float(f(k, v)[:half].std()) for n, f in calls.items()}
    fields = {n: field(lambda v, f=f: f(later, v), v) for n, f in calls.items()}
    return {"fields": fields, "change of the past": change, "deviation": size}


DEFECTS = {"local": local, "sinkhorn": sinkhorn, "reformer": reformer, "performer": performer}


def measure(s: Sizes) -> dict:
    """Each quantity over draws; the fields of the first draw, in percent of each row's largest."""
    percent = lambda x: np.rint(100 * x / np.maximum(x.max(1, keepdims=True), 1e-30)).astype(int)
    results = {}
    for name, defect in DEFECTS.items():
        draws = [defect(s, 10 * seed) for seed in range(s.draws)]
        results[name] = {"fields": {n: percent(x).tolist() for n, x in draws[0]["fields"].items()}}
        for key in (k for k in draws[0] if k != "fields"):
            of = lambda n, key=key, draws=draws: [float(d[key][n]) for d in draws]
            results[name][key] = {n: of(n) for n in ("published", "ours")}
    return results

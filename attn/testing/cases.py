"""What the laws are tried on: small odd shapes, and masks made of the terms a variant honours."""

import jax
import jax.numpy as jnp
import numpy as np

from attn import masks
from attn._arrays import is_floats
from attn.biases import Alibi, Bias
from attn.masks import FULL, Mask
from attn.mechanism import Mechanism
from attn.positions import alibi_slopes

# an odd length that no block divides, fewer key heads than query heads, its own value width
SHAPE = {"batch": (2,), "T": 19, "S": 19, "N": 4, "K": 2, "H": 8, "D": 6}


def inputs(mechanism: Mechanism, *, dtype=jnp.float32, scale=1.0, seed=0, **shape):
    """Unit-normal (q, k, v, learned): q k^T / sqrt(H) has deviation `scale`; learned are the arrays
    and gates that the mechanism asks for. `shape` overrides SHAPE. Raises TypeError for a name that
    is not in it, and for what is not a Mechanism."""
    check_mechanism(mechanism)
    if unknown := sorted(shape.keys() - SHAPE.keys()):
        known, got = ", ".join(SHAPE), ", ".join(unknown)
        raise TypeError(f"shape: expected names out of {known}, got {got}")
    s = {**SHAPE, **shape}
    rng = np.random.default_rng(seed)
    draw = lambda *size: rng.normal(size=size)
    q = draw(*s["batch"], s["T"], s["N"], s["H"]) * scale
    k = draw(*s["batch"], s["S"], s["K"], s["H"])
    v = draw(*s["batch"], s["S"], s["K"], s["D"])
    q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
    learned = mechanism.init(
        jax.random.key(seed),
        num_heads=s["N"],
        num_kv_heads=s["K"],
        head_dim=s["H"],
        value_dim=s["D"],
        max_length=max(s["S"], s["T"]) + 3,
    )
    gates = mechanism.gate_shapes(num_heads=s["N"], num_kv_heads=s["K"], head_dim=s["H"])
    for name, tail in sorted(gates.items()):
        x = -np.abs(draw(*s["batch"], s["S"], *tail)) if "log" in name else None
        if name.endswith(("_k", "_v")):  # keys and values beside k and v
            x = draw(*s["batch"], s["S"], s["K"], s["H"] if name.endswith("_k") else s["D"])
        x = rng.uniform(size=(*s["batch"], s["S"], *tail)) if x is None else x
        learned = {**learned, name: jnp.asarray(x, dtype)}
    return q, k, v, learned


def check_mechanism(mechanism) -> None:
    """Raise TypeError for what is not a Mechanism."""
    if not isinstance(mechanism, Mechanism):
        name = getattr(mechanism, "__name__", repr(mechanism))
        hint = f"; write {name}()" if isinstance(mechanism, type) else ""
        raise TypeError(f"mechanism: expected an attn.Mechanism, got {name}{hint}")


def trained(mechanism: Mechanism, arrays):
    """The arrays of `inputs`, with the learned ones moved as training might: an array that starts
    as the identity, at 0 or at 1 hides overflows that it causes."""
    q, k, v, learned = arrays
    gates = mechanism.gates(num_heads=q.shape[-2], num_kv_heads=k.shape[-2], head_dim=q.shape[-1])
    rng = np.random.default_rng(3)
    move = lambda x: x + jnp.asarray(rng.normal(size=x.shape), x.dtype)
    return q, k, v, {name: x if name in gates else move(x) for name, x in learned.items()}


def base_mask(mechanism: Mechanism) -> Mask:
    """The least mask that the mechanism takes: FULL, or what it requires."""
    return masks.Causal() if masks.Causal in mechanism.requires else FULL


def joined_mask(mechanism: Mechanism, *, T: int, S: int) -> Mask:
    """The honoured ones of `Causal`, `Padding` and `Segments` as one mask; `base_mask` if these are
    neither two or more nor `Padding`."""
    named = masks_for(mechanism, T=T, S=S)
    return named.get("all joined", named.get("Padding", base_mask(mechanism)))


def bias_for(mechanism: Mechanism) -> Bias | None:
    """ALiBi, if the mechanism honours a bias."""
    honoured = Bias in mechanism.honours
    return Alibi(jnp.asarray(alibi_slopes(SHAPE["N"]))) if honoured else None


def masks_for(mechanism: Mechanism, *, T: int, S: int, batch=(2,)) -> dict[str, Mask]:
    """Named masks: FULL, each honoured term (some two at once, to compile less), and combinations
    by `&`, `|` and `~`; each joined with what the mechanism requires. Raises TypeError for what is
    not a Mechanism."""
    check_mechanism(mechanism)
    every = term_examples(T=T, S=S, batch=batch)
    honoured = {kind.__name__ for kind in mechanism.honours}
    found = {name: mask for name, mask in every.items() if name in honoured}
    joined = [found[name] for name in ("Causal", "Padding", "Segments") if name in found]
    if len(joined) > 1:
        found["all joined"] = joined[0] & joined[1]
        for mask in joined[2:]:
            found["all joined"] &= mask
    for a, b, c in (
        ("Dilated", "Strided", "LogDistance"),
        ("Random", "Axial", "Local2D"),
        ("Blocks", "Summary", "Coarse"),
    ):
        if {a, b, c} <= honoured:
            found[f"{a} | {b} & {c}"] = found.pop(a) | (found.pop(b) & found.pop(c))
    if {"Causal", "Prefix", "Window", "Global"} <= honoured:
        found["Causal | Prefix"] = masks.Causal() | found.pop("Prefix")
        found["~Window & Causal"] = ~masks.Window(2, 2) & masks.Causal()
        near = masks.Window(1, 1) | found.pop("Global")
        found["(Window | Global) & Padding"] = near & every["Padding"]
    if "Causal" in honoured:
        found["Causal, later"] = masks.Causal(S - T if T != S else 3)
        found["Causal(-2)"] = masks.Causal(-2)
    base = base_mask(mechanism)
    causal = lambda mask: base == FULL or mask.take(masks.Causal)[0][0] is not None
    joined = {name: mask if causal(mask) else mask & base for name, mask in found.items()}
    return {"FULL": base, **joined}


def term_examples(*, T: int, S: int, batch=(2,)) -> dict[str, Mask]:
    """One small mask for every term of the language."""
    rng = np.random.default_rng(1)
    lengths = np.resize([max(S - 4, 0), S], batch).astype(np.int32)
    ids = lambda n: np.sort(rng.integers(0, 3, size=(*batch, n)), -1).astype(np.int32)
    layout = rng.integers(0, 2, size=(-(-T // 5), -(-S // 5))).astype(bool)
    return {
        "Causal": masks.Causal(),
        "Window": masks.Window(4, 1),
        "Dilated": masks.Dilated(2, 3),
        "Prefix": masks.Prefix(5),
        "Global": masks.Global((0, 7)),
        "Strided": masks.Strided(4),
        "Fixed": masks.Fixed(5, 2),
        "Random": masks.Random(4, 2, 0),
        "Blocks": masks.Blocks(tuple(map(tuple, layout.tolist())), 5),
        "Axial": masks.Axial(4, 5),
        "LogDistance": masks.LogDistance(),
        "Local2D": masks.Local2D(4, 5, 1),
        "Summary": masks.Summary(4, 2),
        "Coarse": masks.Coarse(masks.Causal() | masks.Random(1, 1, 0), 3),
        "Padding": masks.Padding(jnp.asarray(lengths)),
        # ids out of order on purpose: a document need not be one run of tokens
        "Segments": masks.Segments(
            jnp.asarray(rng.permuted(ids(T), axis=-1)), jnp.asarray(rng.permuted(ids(S), axis=-1))
        ),
        "Array": masks.Array(jnp.asarray(rng.uniform(size=(*batch, T, S)) < 0.4)),
    }


def widen(tree):
    """The pytree with every float array in float64; call it under `jax.enable_x64(True)`."""
    cast = lambda x: (
        jnp.asarray(np.asarray(x if x.dtype == np.float64 else x.astype(jnp.float32)), np.float64)
        if is_floats(x)
        else x
    )
    return jax.tree.map(cast, tree)

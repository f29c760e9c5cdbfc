"""BERT (Devlin et al. 2018, arXiv:1810.04805): an Encoder with Hugging Face's weights."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn._arrays import is_floats
from attn._settings import is_integer
from attn.nn.config import EncoderConfig
from attn.nn.encoder import Encoder
from attn.nn.mixers.base import Mixer
from attn.nn.mlp import ACTIVATIONS

# the pooler, heads of pre-training and constant buffers, which an encoder does not have
LEFT_OUT = re.compile(r"(pooler|cls)\.|embeddings\.(position_ids|token_type_ids)$")


def from_bert(
    state: Mapping[str, Any], *, heads: int, classes: int, key: Array, **changes
) -> Encoder:
    """An `Encoder` with the weights of a BERT, whose `features` are its last hidden state.

    `state` is the state dict of a `BertModel` (or of a model that holds one as "bert."): torch
    tensors or arrays under Hugging Face's names, whose shapes give all sizes but `heads`. All
    tokens are of segment 0, whose vector is added to every position; the head is drawn from `key`.
    `changes` are fields of `EncoderConfig`: another `mechanism`, `pooling` (not "cls", since BERT's
    CLS is a token of its own), or an activation other than "gelu_exact".

    Raises a ValueError that names every array that is missing, unknown, of another shape, not of
    floats (quantised) or there under two names, TypeError for a state that is not a dict, such
    as the model.
    """
    if not isinstance(state, Mapping):
        what = "expected a dict of arrays, as model.state_dict() is"
        raise TypeError(f"state: {what}, got {type(state).__name__}")
    part = [name for name in state if name.startswith("bert.")] or state
    given = {_name(name): state[name] for name in part}
    if len(given) < len(part):
        names = [_name(name) for name in part]
        twice = ", ".join(sorted(name for name in given if names.count(name) > 1))
        raise ValueError(f"state: holds {twice} under two names; leave one out")
    given = {name: x for name, x in given.items() if not LEFT_OUT.match(name)}
    config = _config(given, heads=heads, classes=classes, **changes)
    wanted = _shapes(config)
    mistakes = [
        f"{name}: {wrong}"
        for name in sorted(wanted.keys() | given.keys())
        if (wrong := _wrong(wanted.get(name), given.get(name)))
    ]
    if mistakes:
        raise ValueError("state: not a BERT of this kind\n" + "\n".join(mistakes))
    encoder = Encoder(config, key=key)
    _fill(encoder, lambda name: _array(given[name]))
    return encoder


def _name(name: str) -> str:
    """The name without the prefix of a larger model, as newer checkpoints spell it."""
    name = name.removeprefix("bert.")
    return re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name))


def _config(given, *, heads, classes, **changes) -> EncoderConfig:
    tables = [f"embeddings.{name}_embeddings.weight" for name in ("word", "position")]
    tables.append("encoder.layer.0.intermediate.dense.weight")
    if absent := [x for x in tables if len(getattr(given.get(x), "shape", ())) != 2]:
        got = f"got none of the matrices {', '.join(absent)}"
        raise ValueError(f"state: expected a BERT's, {got}; of prefixes only 'bert.' may be left")
    (vocab_size, width), (max_length, _), (mlp_width, _) = (given[x].shape for x in tables)
    layers = {m[1] for name in given if (m := re.match(r"encoder\.layer\.(\d+)\.", name))}
    fixed = dict(vocab_size=vocab_size, width=width, max_length=max_length, mlp_width=mlp_width)
    fixed |= dict(heads=heads, classes=classes, layers=1 + max(map(int, layers)), bias=True)
    fixed |= dict(positions="learned", embedding_norm=True, norm="layer", norm_position="post")
    fixed |= dict(scan=False, tied=False, kv_heads=None, head_dim=None, qk_norm=False)
    if refused := sorted(fixed.keys() & changes.keys()):
        raise ValueError(f"{', '.join(refused)}: the state decides, leave it out")
    # the config's own messages would offer `head_dim` and `bias`, which the state decides
    if is_integer(heads) and heads > 0 and width % heads:
        what = f"a divisor of the width {width}, as {tables[0]} has it"
        raise ValueError(f"heads: expected {what}, got {heads}")
    mechanism = changes.get("mechanism")
    many = mechanism if isinstance(mechanism, tuple) else (mechanism,)
    if any(isinstance(m, Mixer) or getattr(m, "shared_qk", False) for m in many):
        raise ValueError(f"mechanism: expected one with q, k and v of its own, got {mechanism!r}")
    config = EncoderConfig(**fixed, **{"activation": "gelu_exact", "norm_epsilon": 1e-12} | changes)
    if ACTIVATIONS[config.activation][0] != 1:
        raise ValueError(f"activation: expected one without gates, got {config.activation!r}")
    if config.pooling == "cls":
        raise ValueError("pooling: expected another, for BERT's CLS is a token, got 'cls'")
    return config


def _shapes(c: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every array that must be there, by name."""
    W, M = c.width, c.mlp_width
    linear = lambda name, a, b: {f"{name}.weight": (b, a), f"{name}.bias": (b,)}
    norm = lambda name: {f"{name}.weight": (W,), f"{name}.bias": (W,)}
    shapes = {
        "embeddings.word_embeddings.weight": (c.vocab_size, W),
        "embeddings.position_embeddings.weight": (c.max_length, W),
        "embeddings.token_type_embeddings.weight": (2, W),
        **norm("embeddings.LayerNorm"),
    }
    for i in range(c.layers):
        at = f"encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= linear(f"{at}.attention.{name}", W, W)
        shapes |= norm(f"{at}.attention.output.LayerNorm") | norm(f"{at}.output.LayerNorm")
        shapes |= linear(f"{at}.intermediate.dense", W, M) | linear(f"{at}.output.dense", M, W)
    return shapes


def _wrong(shape: tuple[int, ...] | None, x: Any) -> str:
    """What is wrong with an array of which `shape` is expected, "" if nothing; None for none."""
    if shape is None:
        return "unknown array"
    if x is None:
        return f"expected an array {list(shape)}, got none"
    if not (x.is_floating_point() if hasattr(x, "detach") else is_floats(x)):
        return f"expected an array of floats, got {getattr(x, 'dtype', type(x).__name__)}"
    fits = tuple(x.shape) == shape
    return "" if fits else f"expected an array {list(shape)}, got {list(x.shape)}"


def _fill(encoder: Encoder, get: Callable[[str], Array]) -> None:
    """Put every array where it belongs; a torch kernel is [out, in]."""

    def norm(ours, name):
        ours.scale[...], ours.bias[...] = get(f"{name}.weight"), get(f"{name}.bias")

    def linear(ours, name):
        ours.kernel[...], ours.bias[...] = get(f"{name}.weight").T, get(f"{name}.bias")

    table = lambda name: get(f"embeddings.{name}_embeddings.weight")
    encoder.embedding.tokens[...] = table("word")
    encoder.embedding.positions[...] = table("position") + table("token_type")[0]
    norm(encoder.embedding.norm, "embeddings.LayerNorm")
    for i, block in enumerate(encoder.stack.blocks):
        at, attention = f"encoder.layer.{i}", block.attention
        side_by_side = lambda what: jnp.concatenate(
            [get(f"{at}.attention.self.{name}.{what}").T for name in ("query", "key", "value")], -1
        )
        attention.qkv[...] = side_by_side("weight")
        attention.bias.qkv[...] = side_by_side("bias")
        attention.out[...] = get(f"{at}.attention.output.dense.weight").T
        attention.bias.out[...] = get(f"{at}.attention.output.dense.bias")
        norm(block.attention_norm, f"{at}.attention.output.LayerNorm")
        linear(block.mlp.up, f"{at}.intermediate.dense")
        linear(block.mlp.down, f"{at}.output.dense")
        norm(block.mlp_norm, f"{at}.output.LayerNorm")


def _array(x: Any) -> Array:
    """A torch tensor (read as float32, as NumPy has no bfloat16) or an array, in float32."""
    x = x.detach().cpu().float().numpy() if hasattr(x, "detach") else x
    return jnp.asarray(np.asarray(x), jnp.float32)

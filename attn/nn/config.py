"""EncoderConfig: everything that defines an encoder, in plain values and mechanisms."""

import dataclasses
from typing import Literal

from attn.dense.dot_product import Softmax
from attn.masks import Causal
from attn.mechanism import Mechanism
from attn.nn.attention import mistakes_of
from attn.nn.mlp import ACTIVATIONS
from attn.nn.norm import NORMS

CHOICES = {
    "head": ("classification", "token", "dual"),
    "pooling": ("cls", "mean", "max", "none"),
    "positions": ("sinusoidal", "learned", "rotary", "alibi", "t5", "none"),
    "activation": tuple(ACTIVATIONS),
    "norm": tuple(NORMS),
    "norm_position": ("pre", "post"),
    "dtype": ("float32", "bfloat16", "float16"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """`mechanism` is one for all layers or a tuple with one for each, where their settings follow
    the depth as `attn.Differential.for_layers(layers)` do; `kv_heads` None is `heads`, `head_dim`
    None is width / heads, `mlp_width` 0 leaves the position-wise network out. `dropout` is that of
    the residual paths; the share of dropped weights is the mechanism's `dropout_rate`.

    Raises ValueError that names every mistake at once.
    """

    vocab_size: int
    max_length: int  # tokens; CLS is not counted
    classes: int
    layers: int
    width: int
    heads: int
    mlp_width: int
    kv_heads: int | None = None
    head_dim: int | None = None
    mechanism: Mechanism | tuple[Mechanism, ...] = dataclasses.field(default_factory=Softmax)
    head: Literal["classification", "token", "dual"] = "classification"
    pooling: Literal["cls", "mean", "max", "none"] = "mean"
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "none"] = "sinusoidal"
    activation: Literal["gelu", "relu", "silu", "swiglu"] = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    norm_position: Literal["pre", "post"] = "pre"
    qk_norm: bool = False
    dropout: float = 0.0
    tied: bool = False
    scan: bool = False
    remat: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    def __post_init__(self):
        if mistakes := _values(self) or _relations(self):
            raise ValueError("\n".join(mistakes))

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """One for each layer."""
        if isinstance(self.mechanism, tuple):
            return self.mechanism
        return (self.mechanism,) * self.layers

    @property
    def positions_held(self) -> int:
        """The longest sequence that the layers see: CLS takes a position of its own."""
        return self.max_length + (self.pooling == "cls")


def transformer_base(*, vocab_size: int, max_length: int, classes: int, **changes) -> EncoderConfig:
    """The base encoder of Vaswani et al. 2017 (arXiv:1706.03762, table 3): six layers of width
    512, 8 heads, a ReLU network of 2,048, post-norm, sinusoids, dropout 0.1. `changes` are fields
    of `EncoderConfig`. Two things differ: projections of q, k, v and the output have no biases,
    and a token's vector starts with variance 1 in place of being multiplied by sqrt(512)."""
    base = dict(layers=6, width=512, heads=8, mlp_width=2048, activation="relu", dropout=0.1)
    base |= dict(positions="sinusoidal", norm="layer", norm_position="post")
    sizes = dict(vocab_size=vocab_size, max_length=max_length, classes=classes)
    return EncoderConfig(**{**base, **sizes, **changes})


def _values(c: EncoderConfig) -> list[str]:
    """What is wrong with each field alone."""
    mistakes = []

    def expect(ok, name, what):
        if not ok:
            mistakes.append(f"{name}: expected {what}, got {getattr(c, name)!r}")

    least = dict.fromkeys(("vocab_size", "max_length", "classes", "layers", "width", "heads"), 1)
    for name, low in {**least, "mlp_width": 0}.items():
        expect(_is_int(getattr(c, name), low), name, f"an integer >= {low}")
    for name in ("kv_heads", "head_dim"):
        value = getattr(c, name)
        expect(value is None or _is_int(value, 1), name, "an integer >= 1, or None")
    for name, choices in CHOICES.items():
        expect(getattr(c, name) in choices, name, f"one of {', '.join(choices)}")
    for name in ("qk_norm", "tied", "scan", "remat"):
        expect(isinstance(getattr(c, name), bool), name, "True or False")
    number = isinstance(c.dropout, (int, float)) and not isinstance(c.dropout, bool)
    expect(number and 0 <= c.dropout < 1, "dropout", "a number in [0, 1)")
    given = c.mechanism if isinstance(c.mechanism, tuple) else (c.mechanism,)
    known = all(isinstance(m, Mechanism) for m in given)
    expect(known, "mechanism", "a Mechanism such as attn.Softmax(), or a tuple of them")
    for mechanism in dict.fromkeys(given) if known else ():
        mistakes += [f"mechanism: {mechanism.name}.{line}" for line in mistakes_of(mechanism)]
    return mistakes


def _relations(c: EncoderConfig) -> list[str]:
    """What is wrong between fields that are each right alone."""
    many = len(set(c.mechanisms)) > 1
    kinds = " and ".join(map(repr, dict.fromkeys(c.mechanisms)))
    head_dim = c.width // c.heads if c.head_dim is None else c.head_dim
    parts = max((m.parts for m in c.mechanisms), default=1)
    causal = [m.name for m in dict.fromkeys(c.mechanisms) if Causal in m.requires]
    rules = [
        (
            len(c.mechanisms) != c.layers,
            f"mechanism: expected one for each of {c.layers} layers, got {len(c.mechanisms)}; "
            "give it alone, not in a tuple, to use one in every layer",
        ),
        (
            c.scan and many,
            f"scan: expected the same mechanism in every layer, got {kinds}; set scan=False",
        ),
        (
            c.scan and not c.tied and any(m.shared_by_layers for m in c.mechanisms),
            f"scan: expected mechanisms that keep their arrays in each layer, got {kinds}; set "
            "scan=False",
        ),
        (
            c.tied and many,
            f"tied: expected the same mechanism in every layer, got {kinds}; set tied=False",
        ),
        (
            c.head_dim is None and c.width % c.heads,
            f"heads: expected a divisor of width {c.width}, got {c.heads}; or set head_dim",
        ),
        (
            c.kv_heads is not None and c.heads % c.kv_heads,
            f"kv_heads: expected a divisor of heads {c.heads}, got {c.kv_heads}",
        ),
        (
            c.kv_heads not in (None, c.heads) and any(m.shared_qk for m in c.mechanisms),
            f"kv_heads: expected {c.heads} or None with {kinds}, which has one array for queries "
            f"and keys, got {c.kv_heads}",
        ),
        (
            head_dim % parts,
            f"head_dim: expected a multiple of {parts} for {kinds}, got {head_dim}; set head_dim",
        ),
        (
            c.positions == "rotary" and head_dim % parts == 0 and head_dim // parts % 2,
            f"positions: rotary turns pairs, so it needs {_even(parts)}, got {head_dim}; "
            "set head_dim",
        ),
        (
            c.head == "token" and c.pooling != "none",
            "pooling: expected 'none' with head='token', which labels every position, got "
            f"{c.pooling!r}",
        ),
        (
            c.head != "token" and c.pooling == "none",
            f"pooling: expected cls, mean or max with head={c.head!r}, which needs one vector a "
            "sequence, got 'none'",
        ),
        (
            c.pooling == "cls" and causal,
            f"pooling: expected mean, max or none with {' and '.join(causal)}, defined with Causal "
            "only, where CLS at index 0 sees no other token, got 'cls'",
        ),
    ]
    return [message for wrong, message in rules if wrong]


def _even(parts: int) -> str:
    return "an even head width" if parts == 1 else f"a head width that {2 * parts} divides"


def _is_int(value, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low

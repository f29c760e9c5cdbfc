"""EncoderConfig: everything that defines an encoder, in plain values and mechanisms."""

import dataclasses
from typing import Any, Literal

from attn.dense.dot_product import Softmax
from attn.mechanism import Mechanism
from attn.nn.config_rules import mistakes
from attn.nn.mixers.base import Mixer
from attn.positions import Rotary


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The sizes and options of an `Encoder`.

    `mechanism` is one for all layers or a tuple with one for each, as for settings that depend on
    the layer (`attn.Differential.for_layers(layers)`); a `Mixer` such as `attn.nn.LSTM()` may take
    the place of any, and the heads are those of the layers that attend. `kv_heads` None is `heads`,
    `head_dim` None is width / heads, `mlp_width` 0 leaves the position-wise network out. `dropout`
    is that of the embedded tokens and of the residual paths (Vaswani et al. 2017, section 5.4); the
    share of dropped weights is the mechanism's `dropout_rate`.

    Raises a ValueError that names every mistake at once.
    """

    vocab_size: int | None = None  # tokens are ids below it
    token_width: int | None = None  # or vectors of so many numbers, such as patches of an image
    max_length: int  # tokens; CLS is not counted
    classes: int
    layers: int
    width: int
    heads: int
    mlp_width: int
    kv_heads: int | None = None
    head_dim: int | None = None
    mechanism: Mechanism | Mixer | tuple[Mechanism | Mixer, ...] = dataclasses.field(
        default_factory=Softmax
    )
    head: Literal["classification", "token", "dual"] = "classification"
    head_width: int | None = None  # hidden layer of the head; None: mlp_width, or width if 0
    pooling: Literal["cls", "last", "mean", "max", "none"] = "mean"
    positions: Literal["sinusoidal", "grid", "learned", "rotary", "xpos", "alibi", "t5", "none"] = (
        "sinusoidal"
    )
    columns: int | None = None  # for "grid": tokens in a row of the image
    rotary: Rotary = dataclasses.field(default_factory=Rotary)  # for "rotary" and "xpos"
    activation: Literal["gelu", "gelu_exact", "relu", "silu", "swiglu"] = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    norm_position: Literal["pre", "post"] = "pre"
    norm_epsilon: float = 1e-6
    embedding_norm: bool = False
    bias: bool = False  # of the projections to q, k, v and back
    qk_norm: bool = False
    dropout: float = 0.0
    tied: bool = False
    scan: bool = False
    remat: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    def __post_init__(self):
        if wrong := mistakes(self):
            raise ValueError("\n".join(wrong))

    @property
    def mechanisms(self) -> tuple[Mechanism | Mixer, ...]:
        """The mechanism or mixer of each layer."""
        if isinstance(self.mechanism, tuple):
            return self.mechanism
        return (self.mechanism,) * self.layers

    @property
    def positions_held(self) -> int:
        """The length of the longest sequence that the layers see, CLS included."""
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


def check_config(config: Any, kind: type, name: str = "config") -> None:
    """Raise TypeError for what is not a `kind`, such as a dict of its fields."""
    if not isinstance(config, kind):
        raise TypeError(f"{name}: expected {kind.__name__}(...), got {type(config).__name__}")

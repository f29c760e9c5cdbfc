"""The mistakes in an EncoderConfig, all at once: in each field alone, then between fields."""

import dataclasses
from typing import Literal, get_args, get_origin

import numpy as np

from attn._requests import turned_too_far, undone, wrong_requests
from attn._settings import is_hashable, is_integer, is_number
from attn.biases import Bias
from attn.masks import Causal
from attn.mechanism import Mechanism
from attn.nn.mixers.base import Mixer
from attn.positions import Rotary

MOST_LAYERS = 10_000  # each is checked, here and when it is built
TURNED = ("rotary", "xpos")  # positions that rotate queries and keys
# half of it on either side of the centre scales by up to (1.4 / 0.4)^(half / 512)
XPOS_LONGEST = {"float32": 70_000, "bfloat16": 70_000, "float16": 8_000}


def mistakes(c) -> list[str]:
    """A line for each mistake in an `EncoderConfig`: those in single fields or, if there are none,
    those between fields."""
    return _values(c) or _relations(c)


def choices(config) -> dict[str, tuple[str, ...]]:
    """The allowed values of each field whose type is a `Literal`."""
    fields = [field for field in dataclasses.fields(config) if get_origin(field.type) is Literal]
    return {field.name: get_args(field.type) for field in fields}


def _values(c) -> list[str]:
    """The mistakes in each field alone."""
    found = []

    def expect(ok, name, what):
        if not ok:
            found.append(f"{name}: expected {what}, got {getattr(c, name)!r}")

    sizes = dict.fromkeys(("max_length", "classes", "width", "heads"), (1, 2**30))
    sizes |= {"layers": (1, MOST_LAYERS), "mlp_width": (0, 2**30)}
    for name, (low, high) in sizes.items():
        value = getattr(c, name)
        what = f"an integer from {low} to {'2^30' if high == 2**30 else high}"
        expect(is_integer(value) and low <= value <= high, name, what)
    for name in ("vocab_size", "token_width", "columns", "kv_heads", "head_dim", "head_width"):
        value = getattr(c, name)
        fits = value is None or (is_integer(value) and 1 <= value <= 2**30)
        expect(fits, name, "an integer from 1 to 2^30, or None")
    for name, allowed in choices(c).items():
        expect(getattr(c, name) in allowed, name, f"one of {', '.join(allowed)}")
    for name in ("embedding_norm", "bias", "qk_norm", "tied", "scan", "remat"):
        expect(isinstance(getattr(c, name), bool), name, "True or False")
    expect(isinstance(c.rotary, Rotary), "rotary", "an attn.positions.Rotary")
    expect(is_number(c.dropout) and 0 <= c.dropout < 1, "dropout", "a number in [0, 1)")
    small = is_number(c.norm_epsilon) and 0 < c.norm_epsilon < 1
    expect(small, "norm_epsilon", "a number in (0, 1)")
    given = c.mechanism if isinstance(c.mechanism, tuple) else (c.mechanism,)
    known = all(isinstance(m, Mechanism | Mixer) for m in given)
    what = (
        "a Mechanism such as attn.Softmax(), or a Mixer such as attn.nn.LSTM(), or a tuple of them"
    )
    expect(known, "mechanism", what)
    plain = all(map(is_hashable, given))
    what = "fields that can be hashed, such as texts, numbers and tuples"
    expect(plain or not known, "mechanism", what)
    for mechanism in dict.fromkeys(_attending(given)) if known and plain else ():
        found += [f"mechanism: {mechanism.name}.{line}" for line in wrong_requests(mechanism)]
    return found


def _relations(c) -> list[str]:
    """The mistakes between fields that are each valid alone."""
    many = len(set(c.mechanisms)) > 1
    kinds = " and ".join(map(repr, dict.fromkeys(c.mechanisms)))
    head_dim = c.width // c.heads if c.head_dim is None else c.head_dim
    parts = max((m.parts for m in c.mechanisms), default=1)
    causal = [m.name for m in dict.fromkeys(c.mechanisms) if Causal in m.requires]
    blind = _blind(c) if c.pooling == "cls" else []
    rules = [
        (
            (c.vocab_size is None) == (c.token_width is None),
            "vocab_size: expected it, for tokens that are ids, or token_width, for vectors, got "
            f"{c.vocab_size} and {c.token_width}",
        ),
        (
            (c.positions == "grid") != (c.columns is not None),
            "columns: expected the tokens to a row of the image with positions='grid', and None "
            f"with others, got {c.columns} with {c.positions!r}",
        ),
        (
            c.positions == "grid" and c.width < 2,
            f"width: expected at least 2 with positions='grid', got {c.width}",
        ),
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
            c.positions in TURNED and head_dim % parts == 0 and head_dim // parts % 2,
            f"positions: {c.positions} turns pairs, so it needs {_even(parts)}, got {head_dim}; "
            "set head_dim",
        ),
        (unfit := _unfit(c, head_dim, parts), f"rotary: {unfit}"),
        (
            c.positions not in TURNED and c.rotary != Rotary(),
            f"rotary: expected its defaults with positions={c.positions!r}, which turns nothing, "
            f"got {c.rotary}",
        ),
        (
            c.positions == "xpos" and any(m.shared_qk for m in c.mechanisms),
            f"positions: xpos scales queries and keys apart, and {kinds} has one array for both",
        ),
        (
            lost := _undone(c),
            f"{'positions' if c.positions == 'xpos' else 'rotary'}: {lost}",
        ),
        (
            c.positions == "xpos" and c.pooling == "cls",
            "pooling: expected another with positions='xpos', which needs Causal, where "
            "CLS at index 0 sees no other token, got 'cls'",
        ),
        (
            c.positions == "xpos" and c.max_length > XPOS_LONGEST[c.dtype],
            f"max_length: expected at most {XPOS_LONGEST[c.dtype]} with positions='xpos' in "
            f"{c.dtype}, whose numbers its scales would leave, got {c.max_length}",
        ),
        (
            c.head == "token" and c.pooling != "none",
            "pooling: expected 'none' with head='token', which labels every position, got "
            f"{c.pooling!r}",
        ),
        (
            c.head != "token" and c.pooling == "none",
            f"pooling: expected cls, last, mean or max with head={c.head!r}, which needs one "
            "vector a sequence, got 'none'",
        ),
        (
            c.head == "token" and c.head_width is not None,
            f"head_width: expected None with head='token', which is linear, got {c.head_width}",
        ),
        (
            c.pooling == "cls" and causal,
            f"pooling: expected another with {' and '.join(causal)}, defined with Causal "
            "only, where CLS at index 0 sees no other token, got 'cls'",
        ),
        (
            blind,
            f"pooling: expected another with {' and '.join(blind)}, in whose pattern CLS at "
            "index 0 sees no other token, got 'cls'",
        ),
    ]
    return [message for wrong, message in rules if wrong] + _mixing(c)


def uncounted(c) -> list[str]:
    """Why decoding would differ from the whole sequence at once: mechanisms that count the keys, or
    whose pattern is made for that count."""
    found, unknown = [], "and a token that is decoded does not know how many there will be; give it"
    for m in dict.fromkeys(c.mechanisms):
        settled = getattr(m, "settled", None)  # None: it has no pattern
        if getattr(m, "length", 0) is None and not settled:
            what = "counts the keys" if settled is None else "draws its pattern for the keys"
            give = f"that of training, as {m.name}(length={c.max_length})"
            found.append(f"length: {m.name} {what}, {unknown} {give}")
        elif settled is False:
            sizes = [n for n in ("block_size", "stride", "height", "width") if hasattr(m, n)]
            what = " and ".join(sizes) or "masks with sizes of their own"
            found.append(f"mechanism: {m.name} fits its pattern to the keys, {unknown} {what}")
    return found


def _blind(c) -> list[str]:
    """The mechanisms' names, if by their patterns index 0 sees only itself in every layer."""
    i, j = np.zeros((1, 1), int), np.arange(1, c.max_length + 1)[None]
    n = c.max_length + 1
    for m in c.mechanisms:
        patterns = m.patterns(n, n) if hasattr(m, "patterns") else None
        if patterns is None or any(np.any(p.sized(n, n).at(i, j)) for p in patterns):
            return []
    return [m.name for m in dict.fromkeys(c.mechanisms)]


def _mixing(c) -> list[str]:
    """The mistakes with mixers: what they cannot do, and settings of heads if no layer has any."""
    mixers = [m for m in dict.fromkeys(c.mechanisms) if isinstance(m, Mixer)]
    names = " and ".join(m.name for m in mixers)
    alone = mixers and len(mixers) == len(set(c.mechanisms))
    of_heads = [name for name in ("kv_heads", "head_dim", "qk_norm", "bias") if getattr(c, name)]
    of_heads += ["positions"] if c.positions in TURNED else []
    unbiased = [
        m.name for m in dict.fromkeys(c.mechanisms) if isinstance(m, Mixer) or Bias not in m.honours
    ]
    rules = [
        (
            unbiased and c.positions in ("alibi", "t5"),
            f"positions: {' and '.join(unbiased)} has no scores to add {c.positions} to; take "
            + ("" if mixers else "rotary, ")
            + "sinusoidal, learned or none",
        ),
        *(
            (alone, f"{name}: {names} has no heads, got {getattr(c, name)!r}; leave it out")
            for name in of_heads
        ),
        (
            alone and c.pooling == "cls" and all(m.past_only for m in mixers),
            f"pooling: expected another with {names}, where CLS at index 0 sees no other "
            "token, got 'cls'",
        ),
    ]
    return [message for wrong, message in rules if wrong]


def _unfit(c, head_dim: int, parts: int) -> str:
    """What is wrong with the share of each head that is rotated, "" if nothing."""
    part = head_dim // parts
    if c.positions not in TURNED or head_dim % parts or part % 2:
        return ""
    try:
        turned = c.rotary.width(part)
    except ValueError as error:
        return str(error)
    return next(filter(None, (turned_too_far(m, turned) for m in _attending(c.mechanisms))), "")


def _undone(c) -> str:
    """Why a mechanism would undo the scales of rotated q and k, "" if none does."""
    if c.positions not in TURNED:
        return ""
    why = (undone(m, c.rotary, c.positions == "xpos") for m in _attending(c.mechanisms))
    return next(filter(None, why), "")


def _attending(given) -> list[Mechanism]:
    """The mechanisms among layers, which may be mixers."""
    return [m for m in given if isinstance(m, Mechanism)]


def _even(parts: int) -> str:
    return "an even head width" if parts == 1 else f"a head width that {2 * parts} divides"

"""Masks as JSON: patterns are data, equal after save and load in another process."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np

from attn.masks.blocks import Blocks, Coarse, Random
from attn.masks.dynamic import Array, Padding, Segments
from attn.masks.language import KINDS, Full, Mask
from attn.masks.raster import Axial, Local2D
from attn.masks.record import whole
from attn.masks.static import Causal, Global, Prefix, Window
from attn.masks.strided import Dilated, Fixed, LogDistance, Strided, Summary

STATIC_TERMS = (
    Full,
    Causal,
    Window,
    Dilated,
    Prefix,
    Global,
    Strided,
    Fixed,
    Random,
    Blocks,
    Axial,
    LogDistance,
    Local2D,
    Coarse,
    Summary,
)
TERMS = (*STATIC_TERMS, Padding, Segments, Array)


def _decode(value):
    if isinstance(value, list):
        return tuple(map(_decode, value))
    if not isinstance(value, dict):
        return value
    if "dtype" in value:
        values, dtype = value["values"], jnp.dtype(value["dtype"])
        kinds = (bool, int, float) if jnp.issubdtype(dtype, jnp.floating) else (bool, int)
        if not isinstance(values, list) or not all(isinstance(x, kinds) for x in values):
            raise ValueError(f"values: expected numbers of {dtype}, got {values!r:.60}")
        return whole("values", np.array(values, dtype).reshape(value["shape"]))
    fields = {name: _decode(v) for name, v in value.items() if name != "term"}
    kind = KINDS.get(value.get("term"))
    if kind is None:
        raise ValueError(f"term: expected one of {sorted(KINDS)}, got {value.get('term')!r}")
    names = {f.name for f in dataclasses.fields(kind)}
    if set(fields) != names:
        raise ValueError(f"{kind.__name__}: expected fields {sorted(names)}, got {sorted(fields)}")
    return kind(**fields)


def from_json(text: str) -> Mask:
    """The mask that `Mask.to_json` wrote. Raises ValueError for other text, TypeError for none."""
    if not isinstance(text, str):
        raise TypeError(f"text: expected a string as of Mask.to_json, got {type(text).__name__}")
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"mask: not JSON ({error})") from None
    try:
        mask = _decode(value)
    except (TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"mask: {error}") from None
    if not isinstance(mask, Mask):
        raise ValueError(f"mask: expected a JSON object with a 'term' key, got {text[:40]!r}")
    return mask

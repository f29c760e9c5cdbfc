"""An encoder as one safetensors file: its parameters, and its config as JSON in the metadata."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn import MECHANISMS, masks
from attn.mechanism import Mechanism
from attn.nn.config import EncoderConfig
from attn.nn.encoder import Encoder
from attn.nn.mixers import MIXERS, Mixer
from attn.positions import Rotary

FORMAT = "attn.nn.export 1"
# what reading another program's metadata may raise
FOREIGN = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
# the kinds of records in JSON: their class, and the table with their names
RECORDS = {
    "mechanism": (Mechanism, MECHANISMS),
    "mixer": (Mixer, MIXERS),
    "rotary": (Rotary, {"rotary": Rotary}),
}


def save(path: str | os.PathLike, encoder: Encoder) -> None:
    """Write the parameters and the config of an encoder; `load` returns an equal one.

    The file is written beside `path` and renamed, so that a killed process leaves the old one.
    Raises TypeError for what is not an `Encoder` (of a `Decoder`, pass its `encoder`), a ValueError
    that names every variable that is not an array as the config builds it (random keys are not), or
    a mechanism that is not in `attn.MECHANISMS`, OSError that names the file if it cannot be
    written, ImportError without safetensors.
    """
    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder: expected an Encoder, got {type(encoder).__name__}")
    config = json.dumps(_plain(encoder.config))
    arrays = {_name(p): x.get_value() for p, x in nnx.to_flat_state(nnx.state(encoder))}
    if mistakes := _mistakes(_wanted(encoder.config)[1], arrays):
        raise ValueError("encoder: not as its config says\n" + "\n".join(mistakes))
    # not ascontiguousarray, which gives a scalar an axis
    arrays = {name: np.asarray(x, order="C") for name, x in arrays.items()}
    data = _safetensors().numpy.save(arrays, metadata={"format": FORMAT, "config": config})
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # as of a full disk
            error.filename = os.fspath(path)
        raise


def load(path: str | os.PathLike) -> Encoder:
    """The encoder that `save` wrote. Raises ValueError for a file that is truncated, foreign or not
    as its config says, naming every array that is wrong; OSError if it cannot be read."""
    safetensors, data = _safetensors(), Path(path).read_bytes()
    try:
        arrays = safetensors.numpy.load(data)
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']!r}")
        config = _record(json.loads(head["config"]))
    except (safetensors.SafetensorError, *FOREIGN) as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: expected a file of attn.nn.export.save, got {what}") from error
    graph, wanted = _wanted(config)
    if mistakes := _mistakes(wanted, arrays):
        raise ValueError(f"{path}: not as its config says\n" + "\n".join(mistakes))
    put = lambda path, x: x.replace(jnp.asarray(arrays[_name(path)]))
    return nnx.merge(graph, nnx.map_state(put, wanted))


def _wanted(config: EncoderConfig) -> tuple[Any, nnx.State]:
    """The graph and the abstract state of the config's encoder."""
    return nnx.split(nnx.eval_shape(lambda: Encoder(config, key=jax.random.key(0))))


def _name(path: tuple) -> str:
    return ".".join(map(str, path))


def _mistakes(wanted: nnx.State, arrays: dict[str, Any]) -> list[str]:
    """One line for each array that is not as wanted."""
    shown = {_name(p): _shown(x.get_value()) for p, x in nnx.to_flat_state(wanted)}
    given = {name: _shown(x) for name, x in arrays.items()}
    return [
        f"{name}: expected {shown.get(name, 'no such array')}, got {given.get(name, 'none')}"
        for name in sorted(shown.keys() | given.keys())
        if shown.get(name) != given.get(name)
    ]


def _shown(x: Any) -> str:
    dtype, shape = getattr(x, "dtype", None), getattr(x, "shape", None)
    return type(x).__name__ if dtype is None or shape is None else f"{dtype}{list(shape)}"


def _plain(value: Any) -> Any:
    """A config in JSON's types, with mechanisms under their names."""
    if isinstance(value, masks.Mask):
        return {"mask": value.to_json()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if not dataclasses.is_dataclass(value):
        return value
    fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, EncoderConfig):
        return fields
    found = ((k, t) for k, (cls, t) in RECORDS.items() if isinstance(value, cls))
    kind, table = next(found, ("", {}))
    names = [name for name, cls in table.items() if cls is type(value)]
    if not names:
        raise ValueError(
            f"mechanism: {type(value).__name__} has no name in a table of attn, by which it "
            "would be found again"
        )
    return {kind: names[0], "fields": fields}


def _record(fields: dict[str, Any]) -> EncoderConfig:
    return EncoderConfig(**{name: _value(x) for name, x in fields.items()})


def _value(plain: Any) -> Any:
    """The inverse of `_plain`."""
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if not isinstance(plain, dict):
        return plain
    if "mask" in plain:
        return masks.from_json(plain["mask"])
    (kind,) = plain.keys() & RECORDS.keys()
    fields = {name: _value(x) for name, x in plain["fields"].items()}
    return RECORDS[kind][1][plain[kind]](**fields)


def _safetensors():
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError("safetensors is not installed: pip install 'attn-lab[export]'") from error
    return safetensors

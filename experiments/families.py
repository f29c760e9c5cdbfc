"""The models of tasks from one sequence to another, by `Model.family`."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from attn import Causal
from attn.nn import Bahdanau, LSTMNSeq2Seq, LuongSeq2Seq, Seq2Seq, Seq2SeqConfig
from experiments.config import Model
from experiments.tasks.sequence import Translation

BOS = 0  # before the first token of a target: padding, which is no label that counts
RECURRENT = {"bahdanau": Bahdanau, "luong": LuongSeq2Seq, "lstmn": LSTMNSeq2Seq}
OF_RECURRENT = ("family", "width", "dropout")  # the fields of Model that these have


def sequence_model(task: Translation, model: Model, *, key: Array) -> nnx.Module:
    """The model. Raises ValueError, one line for each mistake, for what the family cannot be."""
    if model.family != "transformer":
        _check_recurrent(model)
        sizes = dict(vocab_size=task.vocab_size, classes=task.classes, width=model.width)
        if model.family == "lstmn":
            sizes["max_length"] = task.target_length
        return RECURRENT[model.family](**sizes, bos=BOS, dropout=model.dropout, key=key)
    written = dict(vocab_size=task.classes, max_length=task.target_length, classes=task.classes)
    source = model.encoder(**task.sizes, head="token")
    target = model.encoder(**written, head="token")
    return Seq2Seq(Seq2SeqConfig(source=source, target=target, cross=model.cross, bos=BOS), key=key)


def _check_recurrent(model: Model) -> None:
    names = [f.name for f in dataclasses.fields(Model) if f.name not in OF_RECURRENT]
    lines = [
        f"{name}: expected its default with family={model.family!r}, which has no such thing, got "
        f"{getattr(model, name)!r}"
        for name in names
        if getattr(model, name) != getattr(Model(), name)
    ]
    if lines:
        raise ValueError("\n".join(lines))


def shifted(labels: Int[Array, "B U"]) -> Int[Array, "B U"]:
    """The decoder's input: the target one place later, after the start token."""
    return jnp.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)


def source_mask(model: Model) -> dict[str, Any]:
    """A call's arguments for the source besides its lengths; the decoder is causal by itself."""
    return {"mask": Causal()} if model.causal else {}

"""Testing the tests: wrong implementations, each with the law that must catch it."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import attn
from attn import FULL, Bias, Causal, Padding, Segments
from attn._core import (
    apply_weights,
    attend_materialized,
    biased,
    dense_attention,
    dots,
    isolate,
    masked_softmax,
    scores,
    seen_array,
)
from attn._dropout import as_dropout, check_rate
from attn._inputs import check_qkv
from attn._varying import varying
from attn._wide import wide
from attn.biases import as_bias
from attn.linearized.feature_maps import orthogonal_features
from attn.testing import check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense(attn.Mechanism):
    """A correct dense softmax; each mutant below changes one line of it."""

    honours = (*attn.masks.TERMS, Bias)
    linear_memory = False

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        mask, bias = check_qkv(q, k, v, mask, bias)
        seen = seen_array(self.see(mask), q.shape[-3], k.shape[-3])
        s = biased(self.score(wide(q), wide(k)), bias)
        return self.mix(s, seen, wide(v)).astype(self.out(q))

    def see(self, mask):
        return mask

    def score(self, q, k):
        return scores(q, k) / q.shape[-1] ** 0.5

    def mix(self, s, seen, v):
        return attend_materialized(s, seen, v)

    def out(self, q):
        return q.dtype

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        return dense_attention(q, k, v, mask=mask, bias=bias)

    def flops(self, T, S, N, K, H, D):
        return 2 * T * S * N * (H + D)

    @classmethod
    def examples(cls):
        return (cls(),)


class NoScale(Dense):
    def score(self, q, k):
        return scores(q, k)


class SwappedQK(Dense):
    def score(self, q, k):
        return (
            jnp.swapaxes(super().score(q, k), -1, -2)
            if q.shape[-3] == k.shape[-3]
            else (super().score(q, k))
        )


class DroppedKey(Dense):
    def see(self, mask):
        return mask & ~attn.Global((18,)) | attn.Window(0, 0) & mask


class WrongGroup(Dense):
    """Query head n reads key head n mod K in place of n K / N."""

    def score(self, q, k):
        return scores(q.reshape(*q.shape[:-2], 2, 2, -1).swapaxes(-2, -3).reshape(q.shape), k) / (
            q.shape[-1] ** 0.5
        )


class TurnsGroups(Dense):
    """Where heads share keys, they are not those of their own group."""

    def score(self, q, k):
        shared = q.shape[-2] != k.shape[-2]
        return super().score(jnp.roll(q, 1, -2) if shared else q, k)


class MeanOfEmptyRow(Dense):
    def mix(self, s, seen, v):
        s = jnp.where(seen, s, -1e9)
        return apply_weights(jax.nn.softmax(s, -1), v, jnp.ones_like(seen))


class NanFromEmptyRow(Dense):
    def mix(self, s, seen, v):
        return apply_weights(jax.nn.softmax(jnp.where(seen, s, -jnp.inf), -1), v, seen)


class NarrowSoftmax(Dense):
    """Softmax statistics in bfloat16."""

    def mix(self, s, seen, v):
        narrow = masked_softmax(s.astype(jnp.bfloat16), seen)
        return apply_weights(narrow.astype(s.dtype), v, seen)


class OffInFloat32(Dense):
    """By a thousandth, which is nothing in 16 bits."""

    honours = attn.masks.TERMS

    def __call__(self, q, k, v, **masked):
        return super().__call__(q, k, v, **masked) * (1.001 if q.dtype == jnp.float32 else 1)


class OffInBfloat16(Dense):
    def __call__(self, q, k, v, **masked):
        return super().__call__(q, k, v, **masked) * (1.2 if q.dtype == jnp.bfloat16 else 1)


class IgnoresPadding(Dense):
    def see(self, mask):
        return mask.take(Padding)[1]


class IgnoresSegments(Dense):
    def see(self, mask):
        return mask.take(Segments)[1]


class SeesOneAhead(Dense):
    def see(self, mask):
        (causal,), rest = mask.take(Causal)
        return mask if causal is None else Causal(causal.offset + 1) & rest


class SeesAheadInItsLastBlock(Dense):
    """Off by one in the mask of its last block alone: early outputs and gradients are right."""

    def mix(self, s, seen, v):
        late = (jnp.arange(s.shape[-2]) >= 8)[:, None]
        return super().mix(s, seen | (late & jnp.roll(seen, 1, -1)), v)


class PoisonedByPadding(Dense):
    """0 * NaN: unseen values are multiplied by weight 0."""

    def mix(self, s, seen, v):
        w = masked_softmax(s, seen)
        *batch, N, T, S = w.shape
        K = v.shape[-2]
        out = jnp.einsum("...kgts,...skd->...tkgd", w.reshape(*batch, K, N // K, T, S), v)
        return out.reshape(*batch, T, N, v.shape[-1])


class PoisonedByPaddedLengths(Dense):
    """0 * NaN of all keys, where padding is told by lengths."""

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        out = super().__call__(q, k, v, mask=mask, bias=bias)
        (padding,), _ = mask.take(Padding)
        return out if padding is None or padding.lengths is None else out + 0 * k.sum()


class OverflowReachesThePast(Dense):
    """0 * inf of all keys squared, NaN among them left out."""

    def __call__(self, q, k, v, **masked):
        known = jax.lax.stop_gradient(jnp.where(jnp.isnan(k), 0, k))
        return super().__call__(q, k, v, **masked) + 0 * jnp.square(known).sum()


class AnswersEmptyRows(Dense):
    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        out = super().__call__(q, k, v, mask=mask, bias=bias)
        (padding,), _ = mask.take(Padding)
        if padding is None or padding.lengths is None:
            return out
        return out + (padding.lengths == 0)[:, None, None, None]


class PoisonedByDocuments(Dense):
    """0 * NaN of all keys, where there are documents."""

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        out = super().__call__(q, k, v, mask=mask, bias=bias)
        return out if mask.take(Segments)[0][0] is None else out + 0 * k.sum()


class RowsMeet(Dense):
    """0 * NaN again: of all rows of a batch."""

    honours = ()

    def mix(self, s, seen, v):
        out = super().mix(s, seen, v)
        return out + 0 * out.mean(0, keepdims=True)


class IgnoresPaddingKeys(Dense):
    """Knows paddings by their lengths alone."""

    def see(self, mask):
        (padding,), rest = mask.take(Padding)
        return mask if padding is None or padding.keys is None else rest


class QueriesMeet(Dense):
    """0 * NaN of all queries, padded ones too."""

    honours = (Padding,)

    def __call__(self, q, k, v, **masked):
        return super().__call__(q, k, v, **masked) + 0 * q.mean((-3, -2, -1), keepdims=True)


class AnswersPaddedQueries(Dense):
    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        out = super().__call__(q, k, v, mask=mask, bias=bias)
        (padding,), _ = mask.take(Padding)
        return out if padding is None or padding.queries is None else out + 1


class NanQueriesReachKeys(Dense):
    """A gradient of 0 times a NaN query, summed over all queries."""

    def score(self, q, k):
        return dots(q, isolate(k)[0]) / q.shape[-1] ** 0.5


@jax.custom_vjp
def taught(out, x):
    """`out`, whose gradient also goes to every number of x."""
    return out


taught.defvjp(lambda out, x: (out, x), lambda x, g: (g, jnp.full_like(x, g.sum())))


@jax.custom_vjp
def taught_if_small(out, x):
    """The same of ordinary numbers."""
    return out


taught_if_small.defvjp(
    lambda out, x: (out, x), lambda x, g: (g, jnp.where(jnp.abs(x) < 100, g.sum(), 0))
)


class TeachesPadding(Dense):
    def __call__(self, q, k, v, **masked):
        return taught(super().__call__(q, k, v, **masked), k)


class TeachesPaddedQueries(Dense):
    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        out = super().__call__(q, k, v, mask=mask, bias=bias)
        (padding,), _ = mask.take(Padding)
        return out if padding is None or padding.queries is None else taught(out, q)


@jax.custom_vjp
def multiplied(x, factor):
    """x, whose gradient is multiplied by `factor`."""
    return x


multiplied.defvjp(lambda x, factor: (x, factor), lambda factor, g: (g * factor, None))


class TeachesTheFuture(Dense):
    def __call__(self, q, k, v, **masked):
        return taught_if_small(super().__call__(q, k, v, **masked), v)


class NanTeachesItself(Dense):
    """The gradient of a key that nothing sees is 0 * NaN."""

    def __call__(self, q, k, v, **masked):
        return super().__call__(q, multiplied(k, 1 + 0 * k), v, **masked)


class LaterKeysReachTheirGradients(Dense):
    """Those of the first block alone, which a NaN after it makes NaN."""

    def __call__(self, q, k, v, **masked):
        first = (jnp.arange(q.shape[-3]) < 7)[:, None, None]
        factor = jnp.where(first, 1 + 0 * k.sum(), 1).astype(q.dtype)
        return super().__call__(multiplied(q, factor), k, v, **masked)


class DocumentsMeetBackward(Dense):
    """0 * NaN in the backward pass alone."""

    honours = (Segments,)

    def __call__(self, q, k, v, **masked):
        everything = 1 + 0 * (q.sum() + k.sum() + v.sum())
        return super().__call__(multiplied(q, everything), k, v, **masked)


class TaughtByOtherRows(Dense):
    """A learned temperature's gradient, a sum over all rows, meets 0 * NaN."""

    def init(self, key, *, num_heads, **sizes):
        return {"temperature": jnp.ones(num_heads)}

    def __call__(self, q, k, v, *, mask=FULL, bias=None, temperature):
        q = q * temperature.astype(q.dtype).reshape((1,) * (q.ndim - 2) + (-1, 1))
        return super().__call__(q, k, v, mask=mask, bias=bias)


class SomethingFromNoKeys(Dense):
    def __call__(self, q, k, v, **masked):
        return super().__call__(q, k, v, **masked) + (k.shape[-3] == 0)


class TaughtByNoKeys(Dense):
    def __call__(self, q, k, v, **masked):
        out = super().__call__(q, k, v, **masked)
        return taught(out, q) if k.shape[-3] == 0 else out


class NoKeyGradient(Dense):
    def score(self, q, k):
        return super().score(q, jax.lax.stop_gradient(k))


class BroadcastsWithoutAWord(Dense):
    def score(self, q, k):
        return super().score(q, k) + jnp.zeros(k.shape[-3])


class WidensDtype(Dense):
    def out(self, q):
        return jnp.float32


class RefusesSilently(Dense):
    """Declares nothing and yet takes every mask."""

    honours = ()


class CastsIntegers(Dense):
    def __call__(self, q, k, v, **masked):
        return super().__call__(q.astype(k.dtype), k, v, **masked)


class TakesAnUndeclaredWindow(Dense):
    honours = (*(term for term in attn.masks.TERMS if term is not attn.Window), Bias)

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        check_qkv(q, k, v, mask, bias)
        if mask.take(attn.Window)[0][0] is not None:
            raise NotImplementedError("mask: no Window")
        return super().reference(q, k, v, mask=mask, bias=bias)


class ItsDefinitionTakesAnUndeclaredWindow(TakesAnUndeclaredWindow):
    __call__, reference = TakesAnUndeclaredWindow.reference, Dense.reference


class AddsBiasTwice(Dense):
    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        twice = None if bias is None else 2 * as_bias(bias).array(q.shape[-3], k.shape[-3])[None]
        return super().__call__(q, k, v, mask=mask, bias=twice)


class IgnoresBias(Dense):
    """Declares no bias, and leaves it out where one is given."""

    honours = attn.masks.TERMS

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        check_qkv(q, k, v, mask, bias)
        return super().__call__(q, k, v, mask=mask)

    def reference(self, q, k, v, *, mask=FULL, bias=None):
        check_qkv(q, k, v, mask, bias)
        if bias is not None:
            raise NotImplementedError("bias: has none")
        return super().reference(q, k, v, mask=mask)


class ItsDefinitionIgnoresBias(IgnoresBias):
    __call__, reference = IgnoresBias.reference, Dense.reference


class RequiresInVain(Dense):
    """Declares that it needs `Causal`, and runs without."""

    requires = (Causal,)


class ClaimsLinearMemory(Dense):
    linear_memory = True


class GrowsUnseen(attn.Linear):
    """No array is T x S, but one is T x S / 8."""

    def __call__(self, q, k, v, *, mask=attn.FULL, bias=None):
        some = jnp.repeat(k[..., : max(k.shape[-3] // 8, 1), :, :], 2, axis=-2)
        scores = jnp.sin(jnp.einsum("...tnh,...snh->...nts", q, some))
        unseen = (jnp.swapaxes(scores, -1, -2) @ scores).mean()
        return super().__call__(q, k, v, mask=mask) + 0 * unseen


class TakesFew(attn.Linear):
    def __call__(self, q, k, v, *, mask=attn.FULL, bias=None):
        if q.shape[-3] > 64:
            raise ValueError("too many tokens")
        return super().__call__(q, k, v, mask=mask)


class EqualsItselfAlone(Dense):
    """Each new record is traced anew."""

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


class DecodesWithoutHistory(Dense):
    def init_state(self, batch, **sizes):
        return jnp.zeros(())

    def step(self, state, q, k, v):
        return state, self(q, k, v)


class DecodesWithoutBias(attn.Softmax):
    def step(self, state, q, k, v, *, bias=None):
        return super().step(state, q, k, v)


class PrefillsWithoutMask(attn.Softmax):
    def prefill(self, q, k, v, **given):
        return super().prefill(q, k, v, **given)[0], self(q, k, v)


class PrefillsAnEmptyState(attn.Softmax):
    def prefill(self, q, k, v, **given):
        state, out = super().prefill(q, k, v, **given)
        return jax.tree.map(jnp.zeros_like, state), out


class PrefillsPastItsLength(attn.Softmax):
    def prefill(self, q, k, v, *, max_length, **given):
        return super().prefill(q, k, v, max_length=max(max_length, q.shape[-3]), **given)


class OneMatrixForAllHeads(Dense):
    def weights(self, q, k, *, mask=FULL, bias=None):
        seen = seen_array(mask, q.shape[-3], k.shape[-3])
        return masked_softmax(self.score(q, k), seen).mean(-3)


class DiffersInJit(Dense):
    def __call__(self, q, k, v, **masked):
        out = super().__call__(q, k, v, **masked)
        return out * 1.01 if isinstance(out, jax.core.Tracer) else out


class DiffersUnderShardMap(Dense):
    def __call__(self, q, k, v, **masked):
        return super().__call__(q, k, v, **masked) * (1.01 if varying(q) else 1.0)


class LeadingAxesMeet(Dense):
    """Right for one batch axis, and for none."""

    def __call__(self, q, k, v, **masked):
        out = super().__call__(q, k, v, **masked)
        return out[:, :1] + 0 * out if q.ndim > 4 else out


class NeedsABatchAxis(Dense):
    def __call__(self, q, k, v, **masked):
        return super().__call__(q, k, v, **masked) * (1.0 if q.ndim > 3 else 1.01)


class WidensUnderX64(Dense):
    def out(self, q):
        wide = q.dtype == jnp.float32 and jax.config.jax_enable_x64
        return jnp.float64 if wide else q.dtype


class NarrowsFloat64(Dense):
    def score(self, q, k):
        return super().score(q.astype(jnp.float32), k.astype(jnp.float32)).astype(q.dtype)


class TransposedWeights(Dense):
    def weights(self, q, k, *, mask=FULL, bias=None):
        seen = seen_array(mask, q.shape[-3], k.shape[-3])
        return jnp.swapaxes(masked_softmax(self.score(q, k), seen), -1, -2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowOffByOne(attn.SlidingWindow):
    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        wider = attn.SlidingWindow(left=self.left + 1, right=self.right, block=8)
        return wider(q, k, v, mask=mask, bias=bias)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlobalMaximum(attn.Performer):
    """Long Range Arena's stabiliser: one maximum over all keys, and an epsilon after it."""

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        w = orthogonal_features(self.seed, self.features, q.shape[-1])
        scale = q.shape[-1] ** -0.25
        log_phi = lambda x: (x * scale) @ w.T - (jnp.square(x * scale).sum(-1) / 2)[..., None]
        fq, fk = log_phi(wide(q)), log_phi(wide(k))
        fq = jnp.exp(fq - fq.max(-1, keepdims=True)) + 1e-4
        fk = jnp.exp(fk - fk.max((-3, -1), keepdims=True)) + 1e-4
        seen = seen_array(mask, q.shape[-3], k.shape[-3])
        a = jnp.where(seen, scores(fq, fk), 0)
        return apply_weights(a / a.sum(-1, keepdims=True), wide(v), seen).astype(q.dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropping(Dense):
    """Drops weights correctly; each mutant below changes which."""

    dropout_rate: float = 0.0

    def __post_init__(self):
        check_rate(self.dropout_rate)

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None):
        dropout = None
        if dropout_key is not None:
            dropout = self.change(as_dropout(self.dropout_rate, dropout_key, q, k))
        return dense_attention(q, k, v, mask=mask, bias=bias, dropout=dropout).astype(q.dtype)

    # the mistake is in the definition too: only fairness can tell
    reference = __call__

    def change(self, dropout):
        return dropout


class OneMaskForEveryHead(Dropping):
    def change(self, dropout):
        same = lambda x: jnp.broadcast_to(x[..., :1], x.shape)
        return dataclasses.replace(dropout, rows=same(dropout.rows), columns=same(dropout.columns))


class OneMaskForEveryRow(Dropping):
    """flax.linen's default."""

    def change(self, dropout):
        same = lambda x: jnp.broadcast_to(x[:1], x.shape)
        return dataclasses.replace(dropout, rows=same(dropout.rows), columns=same(dropout.columns))


class DropsWithoutScaling(Dropping):
    """The output shrinks by what is dropped."""

    def __call__(self, q, k, v, *, dropout_key=None, **masked):
        out = super().__call__(q, k, v, dropout_key=dropout_key, **masked)
        return out if dropout_key is None else out * (1 - self.dropout_rate)

    reference = __call__


class ClaimsToDropInLinearMemory(Dropping):
    linear_memory = True


class TakesAnyRate(Dropping):
    def __post_init__(self):
        pass


class DropsWithoutAKey(Dropping):
    def __call__(self, q, k, v, *, dropout_key=None, **masked):
        key = jax.random.key(0) if dropout_key is None else dropout_key
        return super().__call__(q, k, v, dropout_key=key, **masked)


class DropsTheSameForEveryKey(Dropping):
    def __call__(self, q, k, v, *, dropout_key=None, **masked):
        key = None if dropout_key is None else jax.random.key(0)
        return super().__call__(q, k, v, dropout_key=key, **masked)

    reference = __call__


class DropsOthersBackward(Dropping):
    """A backward pass that draws anew: fair in the mean, and its gradient is of another output."""

    def __call__(self, q, k, v, *, dropout_key=None, **masked):
        call = super().__call__
        if dropout_key is None:
            return call(q, k, v, **masked)
        out = call(q, k, v, dropout_key=dropout_key, **masked)
        other = call(q, k, v, dropout_key=jax.random.fold_in(dropout_key, 1), **masked)
        return other + jax.lax.stop_gradient(out - other)


MUTANTS = [
    (NoScale(), "equals_reference"),
    (SwappedQK(), "any_length_works"),
    (DroppedKey(), "equals_reference"),
    (WrongGroup(), "equals_reference"),
    (MeanOfEmptyRow(), "sees_nothing_gives_zero"),
    (NanFromEmptyRow(), "sees_nothing_gives_zero"),
    (NarrowSoftmax(), "equals_reference"),
    (OffInFloat32(), "equals_reference"),
    (OffInBfloat16(), "equals_reference"),
    (IgnoresPadding(), "does_not_leak"),
    (IgnoresSegments(), "does_not_leak"),
    (PoisonedByDocuments(), "does_not_leak"),
    (OverflowReachesThePast(), "is_strictly_causal"),
    (SeesOneAhead(), "is_strictly_causal"),
    (PoisonedByPadding(), "does_not_leak"),
    (PoisonedByPaddedLengths(), "does_not_leak"),
    (RowsMeet(), "does_not_leak"),
    (NoKeyGradient(), "equals_reference"),
    (BroadcastsWithoutAWord(), "refuses_the_rest"),
    (BroadcastsWithoutAWord(), "traces_once_and_keeps_dtype"),
    (WidensDtype(), "traces_once_and_keeps_dtype"),
    (RefusesSilently(), "refuses_the_rest"),
    (IgnoresBias(), "refuses_the_rest"),
    (RequiresInVain(), "refuses_the_rest"),
    (ClaimsLinearMemory(), "memory_is_linear"),
    (GrowsUnseen(), "memory_is_linear"),
    (DecodesWithoutHistory(), "steps_equal_parallel"),
    (DecodesWithoutBias(), "steps_equal_parallel"),
    (TransposedWeights(), "weights_give_output"),
    (WindowOffByOne(left=3, right=2), "equals_reference"),
    (GlobalMaximum(features=16), "is_strictly_causal"),
    (OneMaskForEveryHead(), "drops_fairly"),
    (OneMaskForEveryRow(), "drops_fairly"),
    (DropsWithoutScaling(), "drops_fairly"),
    (DropsOthersBackward(), "drops_fairly"),
    (SeesAheadInItsLastBlock(), "is_strictly_causal"),
    (TeachesTheFuture(), "is_strictly_causal"),
    (NanTeachesItself(), "is_strictly_causal"),
    (LaterKeysReachTheirGradients(), "is_strictly_causal"),
    (TaughtByOtherRows(), "is_strictly_causal"),
    (IgnoresPaddingKeys(), "does_not_leak"),
    (QueriesMeet(), "does_not_leak"),
    (TeachesPadding(), "does_not_leak"),
    (DocumentsMeetBackward(), "does_not_leak"),
    (TaughtByOtherRows(), "does_not_leak"),
    (AnswersEmptyRows(), "sees_nothing_gives_zero"),
    (AnswersPaddedQueries(), "sees_nothing_gives_zero"),
    (NanQueriesReachKeys(), "sees_nothing_gives_zero"),
    (TeachesPaddedQueries(), "sees_nothing_gives_zero"),
    (SomethingFromNoKeys(), "sees_nothing_gives_zero"),
    (TaughtByNoKeys(), "sees_nothing_gives_zero"),
    (AddsBiasTwice(), "equals_reference"),
    (TakesAnUndeclaredWindow(), "refuses_the_rest"),
    (ItsDefinitionTakesAnUndeclaredWindow(), "refuses_the_rest"),
    (CastsIntegers(), "refuses_the_rest"),
    (ItsDefinitionIgnoresBias(), "refuses_the_rest"),
    (PrefillsWithoutMask(), "steps_equal_parallel"),
    (PrefillsAnEmptyState(), "steps_equal_parallel"),
    (PrefillsPastItsLength(), "steps_equal_parallel"),
    (OneMatrixForAllHeads(), "weights_give_output"),
    (DiffersInJit(), "transforms_agree"),
    (DiffersUnderShardMap(), "transforms_agree"),
    (LeadingAxesMeet(), "transforms_agree"),
    (NeedsABatchAxis(), "transforms_agree"),
    (TurnsGroups(), "transforms_agree"),
    (WidensUnderX64(), "traces_once_and_keeps_dtype"),
    (EqualsItselfAlone(), "traces_once_and_keeps_dtype"),
    (NarrowsFloat64(), "traces_once_and_keeps_dtype"),
    (ClaimsToDropInLinearMemory(), "drops_fairly"),
    (TakesAnyRate(), "drops_fairly"),
    (DropsWithoutAKey(), "drops_fairly"),
    (DropsTheSameForEveryKey(), "drops_fairly"),
]


@pytest.mark.parametrize(("mutant", "law"), MUTANTS, ids=lambda x: getattr(x, "name", x))
def test_mutant_is_caught(mutant, law):
    (verdict,) = check(mutant, only=[law]).verdicts
    assert verdict.broken
    assert not verdict.broken.startswith("raised"), verdict.broken


def test_memory_is_not_asked_beyond_a_records_own_length():
    check(attn.Cosformer(length=64), only=["memory_is_linear"]).raise_if_broken()
    (verdict,) = check(TakesFew(), only=["memory_is_linear"]).verdicts
    assert verdict.broken == "raised ValueError: too many tokens"


def test_one_law_may_be_named_alone():
    (verdict,) = check(attn.Softmax(), only="sees_nothing_gives_zero").verdicts
    assert verdict.law == "sees_nothing_gives_zero"
    assert not verdict.broken


@pytest.mark.slow
@pytest.mark.parametrize("law", sorted({law for _, law in MUTANTS} - {"memory_is_linear"}))
def test_the_unchanged_one_passes(law):
    check(Dropping() if law == "drops_fairly" else Dense(), only=[law]).raise_if_broken()

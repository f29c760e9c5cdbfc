"""pick(call, preference): the first implementation that can run a call."""

from collections.abc import Sequence

import jax

from attn._core import scaled
from attn._platform import platform
from attn._shards import undivided
from attn.kernels.call import Call, Implementation
from attn.kernels.cudnn import Cudnn
from attn.kernels.plain import Blockwise, Materialized
from attn.kernels.splash import Splash
from attn.kernels.tokamax import Tokamax

IMPLEMENTATIONS: dict[str, Implementation] = {
    "materialized": Materialized(),
    "blockwise": Blockwise(),
    "cudnn": Cudnn(),
    "tokamax": Tokamax(),
    "splash": Splash(),
}

# what is tried by default, best first; the last one runs anything. Not tokamax: it is an extra, and
# only while differentiating does it say whether a GPU has a backward pass
PREFERENCE = {
    "cpu": ("blockwise",),
    "gpu": ("cudnn", "blockwise"),
    "tpu": ("splash", "blockwise"),
}
# what runs a sparse pattern; not splash, which draws it pair by pair before the first call, O(T S)
FOR_PATTERNS = {"gpu": ("cudnn", "blockwise")}


def preferred_for_patterns() -> tuple[str, ...]:
    """The implementations that this call's platform tries, in this order."""
    return FOR_PATTERNS.get(platform(), ("blockwise",))


def pick(call: Call, preference: str | Sequence[str] | None) -> str:
    """The name of the first implementation in `preference` that can run the call; by default the
    platform's list, or `materialized` for few queries or keys, where blocks do not pay, unless a
    `block` is given.

    Raises ValueError for an unknown name or a scale that no implementation takes, and
    NotImplementedError with each one's reason if none can.
    """
    if call.scale is not None:
        jax.eval_shape(lambda q: scaled(q, call.scale), call.q)  # the same errors for all
    if preference is None:
        short = call.block is None and min(call.q.shape[-3], call.k.shape[-3]) < 8
        preference = "materialized" if short else _preferred(call.platform)
    reasons = {}
    for name in check_names(preference):
        reasons[name] = IMPLEMENTATIONS[name].refusal(call)
        if reasons[name] is None:
            return name
    told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise NotImplementedError(f"implementation: {told}; 'blockwise' honours every request")


def _preferred(platform: str) -> tuple[str, ...]:
    """All that is tried on it. XLA cannot divide splash's kernels among devices: in a program for
    several TPUs they raise, except inside of `jax.shard_map`."""
    names = PREFERENCE.get(platform, ("blockwise",))
    return names if undivided() else tuple(name for name in names if name != "splash")


def run(call: Call, preference: str | Sequence[str] | None):
    """(output, log-sum-exp if asked for) by what `pick` picks."""
    return IMPLEMENTATIONS[pick(call, preference)](call)


def keep_names(record) -> None:
    """Check a record's `implementation`; several names are kept as a tuple, to be hashable."""
    if record.implementation is not None:
        names = check_names(record.implementation)
        one = isinstance(record.implementation, str)
        object.__setattr__(record, "implementation", names[0] if one else names)


def check_names(preference: str | Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple. Raises ValueError unless each is known."""
    names = (preference,) if isinstance(preference, str) else preference
    listed = isinstance(names, (tuple, list)) and len(names) > 0
    if not listed or not all(isinstance(n, str) and n in IMPLEMENTATIONS for n in names):
        expected = ", ".join(map(repr, IMPLEMENTATIONS))
        raise ValueError(
            f"implementation: expected one of {expected}, a list of them or None, got "
            f"{preference!r}"
        )
    return tuple(names)

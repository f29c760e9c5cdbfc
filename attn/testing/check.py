"""check(mechanism): every law tried on one mechanism, and a readable report."""

import dataclasses
import time
from collections.abc import Callable, Iterable

from attn._settings import is_hashable
from attn.mechanism import Mechanism
from attn.testing import laws, memory, runs, traces
from attn.testing.cases import check_mechanism
from attn.testing.contract import BrokenLaw
from attn.testing.dropping import drops_fairly

LAWS: dict[str, Callable[[Mechanism], None]] = {
    law.__name__: law
    for law in (
        laws.equals_reference,
        laws.refuses_the_rest,
        laws.is_strictly_causal,
        laws.does_not_leak,
        laws.sees_nothing_gives_zero,
        laws.any_length_works,
        runs.transforms_agree,
        memory.memory_is_linear,
        runs.steps_equal_parallel,
        runs.weights_give_output,
        traces.traces_once_and_keeps_dtype,
        drops_fairly,
    )
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One law on one mechanism: `broken` says how it fails, and is empty if it holds."""

    law: str
    broken: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Report:
    """All verdicts on one mechanism, to be printed."""

    mechanism: Mechanism
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether every law held."""
        return not any(v.broken for v in self.verdicts)

    def __str__(self) -> str:
        lines = [str(self.mechanism)]
        for v in self.verdicts:
            lines.append(f"  {'BROKEN' if v.broken else 'holds ':6} {v.law} ({v.seconds:.1f} s)")
            lines += [f"         {v.broken}"] if v.broken else []
        held = sum(not v.broken for v in self.verdicts)
        return "\n".join([*lines, f"  {held} of {len(self.verdicts)} laws hold"])

    def raise_if_broken(self) -> None:
        """Raise BrokenLaw with the whole report unless every law held."""
        if not self.ok:
            raise BrokenLaw(str(self))


def check(mechanism: Mechanism, *, only: Iterable[str] = ()) -> Report:
    """Try every law (or those named in `only`) on a mechanism; about a minute on two cores.

    A law about what a variant does not offer (it refuses `Causal`, it does not decode) holds
    trivially. An exception that is not a refusal is reported as a broken law. Raises TypeError for
    what is not a Mechanism, or not hashable, ValueError for an unknown law.
    """
    check_mechanism(mechanism)
    if not is_hashable(mechanism):
        what = "fields that can be hashed, such as texts, numbers and tuples"
        raise TypeError(f"mechanism: expected {what}, got {mechanism!r}")
    only = (only,) if isinstance(only, str) else tuple(only)
    unknown = sorted(set(only) - set(LAWS))
    if unknown:
        raise ValueError(f"only: expected names among {', '.join(LAWS)}, got {', '.join(unknown)}")
    verdicts = []
    for name in only or LAWS:
        start = time.perf_counter()
        try:
            LAWS[name](mechanism)
            broken = ""
        except BrokenLaw as error:
            broken = str(error)
        except Exception as error:
            broken = f"raised {type(error).__name__}: {error}"
        verdicts.append(Verdict(name, broken, time.perf_counter() - start))
    return Report(mechanism, tuple(verdicts))

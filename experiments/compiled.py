"""A step compiled once for a whole run: other arguments are an error, not another compilation."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax

from experiments.checkpoint import flatten
from experiments.errors import RetraceError
from experiments.measure.cost import Known, Program, build
from experiments.quick import quick_options


def once(function: Callable, *arguments: Any, quickly: bool = True) -> Any:
    """`function(*arguments)`, compiled for this one call; if quickly, its last bits may differ."""
    options = quick_options() if quickly else {}
    return jax.jit(function).lower(*arguments).compile(options)(*arguments)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A function compiled ahead of time. Raises RetraceError for arguments of other shapes, dtypes
    or structure; the check costs nothing, since the executable compares them anyway."""

    function: Callable
    program: Program

    @classmethod
    def of(
        cls, function: Callable, *arguments: Any, known: Known | None = None, **options: Any
    ) -> Self:
        """`function` compiled; `known` is `build`'s, `options` are jax.jit's."""
        return cls(function, build(jax.jit(function, **options), *arguments, known=known))

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.program.call(*arguments)
        except TypeError as error:
            if not (lines := self._changed(arguments)):
                raise
            what = f"{self.function.__name__} is compiled once, and its arguments changed:"
            raise RetraceError("\n  ".join([what, *lines])) from error

    def _changed(self, arguments: Sequence[Any]) -> list[str]:
        """`batch.tokens: int32[8, 64] was compiled, int32[8, 63] came`."""
        names = inspect.signature(self.function).parameters
        named = lambda values: flatten(dict(zip(names, values, strict=True)))
        show = lambda x: "nothing" if x is None else f"{x.dtype}{list(x.shape)}"
        was, now = named(self.program.call.args_info[0]), named(arguments)
        pairs = {name: (show(was.get(name)), show(now.get(name))) for name in {**was, **now}}
        return [f"{n}: {a} was compiled, {b} came" for n, (a, b) in pairs.items() if a != b]

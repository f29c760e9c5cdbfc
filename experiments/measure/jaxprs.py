"""What is inside a jaxpr: the jaxprs of its equations, the equations that are needed."""

from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal


def used(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations that the outputs need."""
    needed, kept = {x for x in jaxpr.outvars if not isinstance(x, Literal)}, []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            kept.append(eqn)
            needed.update(x for x in eqn.invars if not isinstance(x, Literal))
    return kept[::-1]


def jaxprs(eqn: JaxprEqn) -> list[Jaxpr | ClosedJaxpr]:
    """Those in an equation's parameters."""
    values = jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr)
    return [x for x in values if _is_jaxpr(x)]


def _is_jaxpr(x: Any) -> bool:
    return isinstance(x, Jaxpr | ClosedJaxpr)


def close(x: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    return x if isinstance(x, ClosedJaxpr) else ClosedJaxpr(x, [None] * len(x.constvars))


def has_loop(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Whether there is a `while` in it, however deep."""
    eqns = close(jaxpr).jaxpr.eqns
    return any(e.primitive.name == "while" or any(map(has_loop, jaxprs(e))) for e in eqns)

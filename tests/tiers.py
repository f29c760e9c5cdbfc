"""When the tests over all mechanisms run: the suite compiles for most of its time, and what a
mechanism has from its engine one of them shows."""

import hashlib

import pytest

# one of each engine, and of each way to keep a state
ENGINES = (
    *("softmax", "luong", "forgetting"),
    *("linear", "based", "gla", "gated_delta_net", "rwkv7"),
    *("window", "strided", "hierarchical", "reformer", "moba", "nsa"),
    *("linformer", "nystrom", "pooled", "luna"),
)
# one of each kind of engine, for tests that compile several programs a mechanism
FEW = ("softmax", "linear", "gated_delta_net", "window", "moba", "nystrom")


def at_once(every, some=ENGINES):
    """Some at once, the others in CI: `scripts/test --slow`."""
    return [x if x in some else pytest.param(x, marks=pytest.mark.slow) for x in every]


def in_ci(every, some):
    """Some in CI, the others with `scripts/test --all`."""
    mark = lambda x: pytest.mark.slow if x in some else pytest.mark.thorough
    return [pytest.param(x, marks=mark(x)) for x in every]


def turn(file: str, commit: str) -> bytes:
    """The place of a file among those of slow tests: another one for each commit, so that what is
    left out where there is no time for all is not always the same."""
    return hashlib.sha256(f"{commit} {file}".encode()).digest()

"""docs/guarantees.md says what its command says, and the command notices what does not hold."""

import pathlib

import jax
import pytest
from test_laws import whole_in_ci
from test_mutants import MUTANTS as UNDER_LAWS
from test_mutants import (
    DecodesWithoutHistory,
    Dense,
    Dropping,
    IgnoresPadding,
    IgnoresSegments,
    NoKeyGradient,
    NoScale,
    SeesOneAhead,
    TransposedWeights,
    WidensDtype,
    WrongGroup,
)
from tiers import ENGINES

import attn
from attn import FULL, Bias
from attn._core import apply_weights, masked_softmax
from attn.sparse._patterned import Patterned
from attn.testing import guarantees
from attn.testing.guarantees import COLUMNS, Column, verdict

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "guarantees.md"
CELLS = {"holds", "refused", "forward", "reverse", "FAILS"}


def cells_of(line):
    return line.strip("| ").split(" | ")[1:]


def test_one_row_for_each_mechanism_and_no_failure_without_its_reason():
    lines = guarantees.rows(PAGE.read_text())
    assert list(lines) == list(attn.MECHANISMS), "run python -m attn.testing.guarantees"
    for name, (line, *reasons) in lines.items():
        cells = cells_of(line)
        assert len(cells) == len(COLUMNS), name
        assert set(cells) <= CELLS, line
        failed = [title for title, cell in zip(COLUMNS, cells) if cell == "FAILS"]
        assert [reason.split(":")[0] for reason in reasons] == [f"* `{name}`, {t}" for t in failed]


@pytest.mark.thorough
@pytest.mark.parametrize("name", attn.MECHANISMS)
def test_made_again_it_is_the_committed_row(name):
    made = guarantees.row(name, attn.MECHANISMS[name].examples()[0])
    assert made == guarantees.rows(PAGE.read_text())[name]


# patterns are masks that one engine joins: what their rows say is the same of all
PATTERNS = [name for name, kind in attn.MECHANISMS.items() if issubclass(kind, Patterned)]
NO_LAW_TRIES = {"float64", "second order"}


def test_patterns_have_one_row():
    lines = guarantees.rows(PAGE.read_text())
    cells = {name: cells_of(lines[name][0]) for name in PATTERNS}
    assert all(row == cells["window"] for row in cells.values()), cells


def cells_in_ci(name):
    """Not what laws try there; of one of each engine the second order, half of a row's price."""
    line = guarantees.rows(PAGE.read_text())[name][0]
    whole = whole_in_ci(attn.MECHANISMS[name])
    tried = COLUMNS.keys() - NO_LAW_TRIES if whole else {"decode"}
    left = set() if name in ENGINES else {"second order"}
    cells = dict(zip(COLUMNS, cells_of(line), strict=True))
    plain = {t for t in tried if cells[t] == "holds"}
    return {t: cell for t, cell in cells.items() if t not in plain | left}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in attn.MECHANISMS if n == "window" or n not in PATTERNS])
def test_cells_are_as_committed(name):
    cells, mechanism = cells_in_ci(name), attn.MECHANISMS[name].examples()[0]
    assert {t: verdict(mechanism, COLUMNS[t])[0] for t in cells} == cells


class IgnoresBias(Dense):
    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        return super().__call__(q, k, v, mask=mask)


class DropsByAnotherKey(Dropping):
    def __call__(self, q, k, v, *, dropout_key=None, **masked):
        other = None if dropout_key is None else jax.random.fold_in(dropout_key, 1)
        return super().__call__(q, k, v, dropout_key=other, **masked)


@jax.custom_vjp
def _softmax(s, seen):
    return masked_softmax(s, seen)


def _softmax_back(w, g):
    w = jax.lax.stop_gradient(w)  # right once, wrong twice
    return w * (g - (w * g).sum(-1, keepdims=True)), None


_softmax.defvjp(lambda s, seen: (_softmax(s, seen),) * 2, _softmax_back)


class RightOnlyOnce(Dense):
    def mix(self, s, seen, v):
        return apply_weights(_softmax(s, seen), v, seen)


class SwallowsTheKey(Dense):
    """It has no dropout, and takes a key without a word."""

    def __call__(self, q, k, v, *, mask=FULL, bias=None, dropout_key=None):
        return super().__call__(q, k, v, mask=mask, bias=bias)


class RefusesWhatItDeclares(Dense):
    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        raise NotImplementedError("no bias, no Causal, no Padding")


class RefusesWithoutAName(RefusesWhatItDeclares):
    honours = ()

    def __call__(self, q, k, v, *, mask=FULL, bias=None):
        raise NotImplementedError("not today")


MUTANTS = {
    "causal": SeesOneAhead(),
    "bidirectional": NoScale(),
    "cross": NoScale(),
    "padding": IgnoresPadding(),
    "segments": IgnoresSegments(),
    "bias": IgnoresBias(),
    "dropout": DropsByAnotherKey(),
    "grouped heads": WrongGroup(),
    "decode": DecodesWithoutHistory(),
    "weights": TransposedWeights(),
    "bfloat16": WidensDtype(),
    "float16": WidensDtype(),
    "float64": WidensDtype(),
    "gradient": NoKeyGradient(),
    "second order": RightOnlyOnce(),
}


def test_every_column_has_a_mutant():
    assert list(MUTANTS) == list(COLUMNS)


def test_the_pages_count_the_mutants():
    """One said 25 and 15 where the others said 82 in all."""
    pages = (PAGE, PAGE.with_name("reliability.md"), PAGE.parent.parent / "README.md")
    here, reliability, readme = (page.read_text() for page in pages)
    n = len(UNDER_LAWS) + len(MUTANTS)
    assert f"{len(UNDER_LAWS)} planted under the laws, {len(MUTANTS)} under" in here
    assert f"| {n} of {n} caught |" in reliability
    assert f"{n} of {n} wrong implementations" in readme


@pytest.mark.slow
@pytest.mark.parametrize("title", MUTANTS)
def test_a_mutant_fails_where_the_unchanged_one_does_not(title):
    cell, why = verdict(MUTANTS[title], COLUMNS[title])
    assert cell == "FAILS"
    assert not why.startswith("raised"), why
    unchanged = Dropping() if isinstance(MUTANTS[title], Dropping) else Dense()
    assert verdict(unchanged, COLUMNS[title]) in (("holds", ""), ("refused", ""))


@pytest.mark.parametrize(
    ("mechanism", "title"),
    [
        (SwallowsTheKey(), "dropout"),
        (RefusesWhatItDeclares(), "bias"),
        (RefusesWhatItDeclares(), "causal"),
        (RefusesWithoutAName(), "padding"),
    ],
)
def test_what_is_no_refusal_is_a_failure(mechanism, title):
    cell, why = verdict(mechanism, COLUMNS[title])
    assert cell == "FAILS", why


def test_the_command_writes_rows_and_says_what_fails(tmp_path, monkeypatch, capsys):
    def broken(mechanism):
        raise guarantees.BrokenLaw("off\nby one")

    def refused(mechanism):
        raise NotImplementedError("no bias here")

    columns = {"good": lambda m: None, "bad": broken, "refused": refused}
    columns = {title: Column(check, "bias", Bias) for title, check in columns.items()}
    monkeypatch.setattr(guarantees, "COLUMNS", columns)
    page = tmp_path / "page.md"
    page.write_text(f"above\n{guarantees.START}{guarantees.END}below\n")
    write = f"--write={page}"
    assert guarantees.main(["--mechanism=linformer", write]) == 1
    assert guarantees.main(["--mechanism=linear", write]) == 1
    table = page.read_text().removeprefix("above\n").removesuffix("below\n").splitlines()
    assert table[1:-1] == [
        "| mechanism | good | bad | refused |",
        "|---|---|---|---|",
        "| `linear` | holds | FAILS | refused |",
        "| `linformer` | holds | FAILS | refused |",
        "",
        "* `linear`, bad: off by one",
        "* `linformer`, bad: off by one",
    ]
    monkeypatch.setattr(guarantees, "COLUMNS", {"good": columns["good"]})
    assert guarantees.main(["--mechanism=linear", write]) == 0
    assert "* `linear`" not in page.read_text()
    capsys.readouterr()
    with pytest.raises(SystemExit) as wrong:
        guarantees.main(["--mechanism=linaer"])
    assert wrong.value.code == 2
    assert "invalid choice: 'linaer'" in capsys.readouterr().err

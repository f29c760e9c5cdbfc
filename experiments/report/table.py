"""The table of a comparison: its columns, and their forms for Markdown and a terminal."""

import dataclasses
from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from experiments.report.data import Variant, at, failures, outcome


@dataclasses.dataclass(frozen=True)
class Column:
    """`value` is what is sorted by; `show` is what is read, by default the value's digits."""

    group: str
    heading: str
    unit: str
    value: Callable[[Variant], float | None]
    show: Callable[[Variant], str] | None = None
    short: bool = False  # fits a terminal

    def text(self, variant: Variant) -> str:
        return self.show(variant) if self.show else number(self.value(variant))


def number(x: float | None) -> str:
    """Three significant digits without an exponent; a dash if there is none."""
    if x is None:
        return "—"
    if x == 0:
        return "0"
    power = int(f"{x:.2e}".partition("e")[2])  # of what is shown: 9.996 rounds to 10.0
    return f"{x:,.{max(0, 2 - power)}f}"


def _accuracy(split: str) -> Callable[[Variant], str]:
    def show(variant: Variant) -> str:
        if (found := variant.interval(split)) is None:
            return "—"
        mean, half = found
        return f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"

    return show


def _whole(key: str) -> Callable[[Variant], str]:
    return lambda variant: "—" if variant.mean(key) is None else f"{variant.mean(key):,.0f}"


def _seeds(variant: Variant) -> str:
    done, planned = sum(cell.result is not None for cell in variant.cells), len(variant.cells)
    return f"{done}" if done == planned else f"{done} of {planned}"


def _cost(key: str, per: float = 1) -> Callable[[Variant], float | None]:
    return lambda variant: None if variant.cost.get(key) is None else variant.cost[key] / per


def _time(what: str) -> Callable[[Variant], str]:
    """Milliseconds, and how far half of the rounds lie around them."""

    def show(variant: Variant) -> str:
        spread = variant.cost.get(f"{what}_ms_spread")
        return _within(_cost(f"{what}_ms")(variant), spread and spread / 2)

    return show


def _speed(variant: Variant) -> str:
    found = variant.results("steps_per_second")
    half = (max(found) - min(found)) / 2 if len(found) > 1 else None
    return _within(variant.mean("steps_per_second"), half)


def _within(middle: float | None, half: float | None) -> str:
    """To as many digits as the number in the middle."""
    text = number(middle)
    return text if half is None else f"{text} ± {half:,.{len(text.partition('.')[2])}f}"


def _work(what: str) -> Callable[[Variant], str]:
    """GFLOP; a lower bound where the cost says what it could not count."""

    def show(variant: Variant) -> str:
        bound = "≥ " if variant.cost.get(f"{what}_flops_without") else ""
        return bound + number(_cost(f"{what}_flops", 1e9)(variant))

    return show


def _error(variant: Variant) -> str:
    error = variant.cost.get("softmax_error")
    return "—" if error is None else f"{100 * error:.1f}"  # of softmax itself it is 0.00002


def _note(key: str) -> Callable[[Variant], str]:
    # of several comparisons each cell has what its own says
    each = lambda variant: dict.fromkeys(cell.notes.get(key, "—") for cell in variant.cells)
    return lambda variant: "; ".join(each(variant))


def _steps(variant: Variant) -> str:
    """Those that a budget pays for, and whether they end before the learning rate is what the
    configuration says."""
    paid = _note("steps")(variant)
    # of a run that has finished, as others may be damaged
    config = next((cell.config for cell in variant.cells if cell.result), {})
    steps, warmup = (at(config, k) or 0 for k in ("train.steps", "optimizer.warmup_steps"))
    return f"{paid} (inside the warm-up of {warmup:,})" if paid != "—" and steps < warmup else paid


TEST, VAL = "test.accuracy", "validation.accuracy"
STEP, ATTENTION = "whole train step", "attention alone, one layer"
COLUMNS = (
    Column("accuracy", "test", "% ± 95%", lambda v: v.mean(TEST), _accuracy("test"), short=True),
    Column("accuracy", "validation", "% ± 95%", lambda v: v.mean(VAL), _accuracy("validation")),
    Column(
        "accuracy",
        "against the first",
        "points",
        lambda v: v.against and 100 * v.against.difference,
        lambda v: v.against.text() if v.against else "—",
        short=True,
    ),
    Column("accuracy", "test loss", "nats", lambda v: v.mean("test.loss")),
    Column("accuracy", "seeds", "", lambda v: len(v.results(TEST)), _seeds),
    Column("fairness", "matched", "", lambda v: None, _note("matched")),
    Column("fairness", "searched", "", lambda v: None, _note("searched")),
    Column("fairness", "steps", "", lambda v: None, _steps),
    Column("model", "parameters", "", lambda v: v.mean("parameters"), _whole("parameters")),
    Column(STEP, "speed", "steps/s", lambda v: v.mean("steps_per_second"), _speed),
    Column(STEP, "in turns", "ms", _cost("step_ms"), _time("step"), short=True),
    Column(STEP, "compile", "s", _cost("step_compile_seconds")),
    Column(STEP, "peak", "MB", _cost("step_peak_bytes", 1e6)),
    Column(STEP, "work", "GFLOP", _cost("step_flops", 1e9), _work("step")),
    Column(ATTENTION, "forward", "ms", _cost("forward_ms"), _time("forward")),
    Column(
        ATTENTION,
        "fwd + bwd",
        "ms",
        _cost("forward_backward_ms"),
        _time("forward_backward"),
        short=True,
    ),
    Column(ATTENTION, "peak", "MB", _cost("attention_peak_bytes", 1e6)),
    Column(ATTENTION, "work", "GFLOP", _cost("attention_flops", 1e9), _work("attention")),
    Column("decoding", "state", "KB/sequence", _cost("decode_state_bytes", 1e3)),
    Column("attention to softmax", "error", "%", _cost("softmax_error", 0.01), _error),
)
NOTES = {
    "accuracy": "The checkpoint that is best on validation, tested once. Mean over the seeds that "
    "finished ± 95% interval, of seeds by t and of the test's rows, which all seeds share; a "
    "single seed has none. Against the first variant of its task, of its own comparison where a "
    "report of several has one, as it ran on its own machine where it did: the mean difference "
    "over the seeds that both finished, told how many where one of them finished more; p by a test "
    "paired by seed and by row, with Holm's correction for so many variants; a tie from 0.05.",
    STEP: "Forward, backward and update of the whole model on one batch. Speed is that of training "
    "beside whatever else ran, a mean over seeds ± half of their range; in turns: medians over "
    "rounds in which all variants of one comparison take turns, ± half of the range in which the "
    "middle half of the rounds lies. Compiling is measured once.",
    ATTENTION: "The mechanism on q, k and v as in training, without projections or padding "
    "(under Causal or no mask); the mean over the layers that attend, a dash where none does. "
    "Milliseconds are medians over rounds in which all variants of one comparison take turns, ± as "
    "of a step; peak and work are of fwd + bwd, which is forward and backward.",
    "fairness": "What was solved to match the first variant, how far off it is; what was chosen "
    "on validation, from how many trials, and whether it is an end of those listed or within 5% of "
    "an end of its range, beyond which a better one may lie; the steps that the budget pays for, "
    "and whether they end inside the warm-up, before the learning rate was ever what it is set to.",
    "peak": "Arguments + outputs - aliased + temporaries of the compiled program.",
    "work": "Matrix products only, counted in the jaxpr; ≥ where a loop's length depends on data.",
    "attention to softmax": "|y - softmax| / |softmax|, in Frobenius' norm, of what a layer makes "
    "of its own q, k and v at the first test example of one run, mean over layers; 100 is that of "
    "answering 0. A dash where a variant does not stand in for softmax: recurrences, other scores.",
    "decoding": "The state of all layers for decoding one sequence of the task's length, which is "
    "that of the longest asked; a dash where a layer does not decode, or the model is not causal, "
    "its accuracy that of none.",
}


def told(rows: Sequence[Variant]) -> list[Column]:
    """Those of accuracy, which come first, and all columns that say something."""
    says = lambda column: any(column.text(row) != "—" for row in rows)
    return [c for n, c in enumerate(COLUMNS) if n < 2 or says(c)]


def notes(columns: Sequence[Column]) -> dict[str, str]:
    """What is to be known of these columns."""
    shown = {c.group for c in columns} | {c.heading for c in columns}
    return {name: text for name, text in NOTES.items() if name in shown}


def markdown(rows: Sequence[Variant], baselines: dict[str, float]) -> str:
    """A table for a README; its units in the headings."""
    columns = told(rows)
    plain = lambda s: s.replace("|", "\\|").replace("\n", " ")
    line = lambda cells: f"| {' | '.join(map(plain, cells))} |"
    group = {STEP: "train step: ", ATTENTION: "attention: ", "decoding": "decode ", "accuracy": ""}
    group["attention to softmax"] = "to softmax: "
    name = lambda c: f"{group.get(c.group, '')}{c.heading}{c.unit and f' ({c.unit})'}"
    out = [line(["variant", *map(name, columns)]), line(["---", *["---:"] * len(columns)])]
    out += [line([row.name, *(c.text(row) for c in columns)]) for row in rows]
    blank = [""] * (len(columns) - 2)
    out += [line([f"*{n}*", "", f"{100 * x:.1f}", *blank]) for n, x in baselines.items()]
    for cell in failures(rows):
        what = outcome(cell.error)
        out.append(line([f"{cell.variant}, seed {cell.seed}", what, "", *blank]))
    return "\n".join([*out, "", *(f"* {k}: {v}" for k, v in notes(columns).items()), ""])


def terminal(rows: Sequence[Variant]) -> Table:
    """The table as it is printed, wrapped where it is wider; the rest is in the report."""
    table = Table(
        caption="accuracy ± 95% of seeds and test rows; ms: medians ± of half of the rounds, "
        "in turns: a train step, fwd + bwd: attention alone",
        caption_justify="left",
    )
    table.add_column("variant", overflow="fold")
    for column in (shown := [c for c in told(rows) if c.short]):
        heading = f"{column.heading}\n{column.unit}"
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(Text(row.name), *(column.text(row) for column in shown))
    for cell in failures(rows):
        what, _, _ = outcome(cell.error).partition(":")
        table.add_row(Text(cell.variant), Text(f"{what}, seed {cell.seed}"), style="red")
    return table

"""What a comparison would take, from one compilation and a few steps of each variant."""

import datetime
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from experiments.quantities import Step, in_turns
from experiments.report.table import number
from experiments.sweep import Planned


def estimate(planned: Sequence[Planned]) -> Table:
    """The runs by variant: their work, the memory of a step, and the time of their steps here with
    all cores to one, compilation included; evaluation and saving come on top."""
    table = Table(
        caption="time: of compiling and training steps, one run at a time", caption_justify="left"
    )
    for heading in ("variant", "runs", "steps", "TFLOP", "peak MB", "time"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    runs, total = {}, 0.0
    for p in planned:
        runs.setdefault(p.variant, []).append(p.experiment)
    for variant, experiments in runs.items():
        step = Step(experiments[0])
        program = step.compile()
        milliseconds = in_turns({"": step}, rounds=5, seconds=10)[""].median
        steps = sum(e.train.steps for e in experiments)
        seconds = len(experiments) * program.compile_seconds + steps * milliseconds / 1e3
        total += seconds
        bound = "≥ " if step.work.unknown else ""
        table.add_row(
            Text(variant),
            f"{len(experiments)}",
            f"{steps:,}",
            bound + number(step.work.flops * steps / 1e12),
            number(program.peak_bytes / 1e6),
            _time(seconds),
        )
    table.add_section()
    table.add_row("all", f"{len(planned)}", "", "", "", _time(total))
    return table


def _time(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))

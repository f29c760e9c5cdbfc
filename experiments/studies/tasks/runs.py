"""The runs of the study: each config that two cores train in minutes, as its file has it."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from experiments import provenance, quantities, train
from experiments.cells import Cells
from experiments.config_file import read, read_sweep
from experiments.gathered import baselines
from experiments.stdout import tell
from experiments.studies.record import trained
from experiments.sweep import Planned, firsts, plan

SWEEP = ("sweep()",)
STATES = ("softmax", "positive", "negative", "lstm")
# what each config is run with: these arguments of its get_config, or all that its sweep() yields
CONFIGS = {
    "recall": ("softmax",),
    "recall_state": SWEEP,
    "gating:selective_copy": SWEEP,
    "gating:induction": SWEEP,
    "needle": ("softmax",),
    "stack": ("softmax",),
    "copy": ("softmax", "linear", "gated_delta_net"),
    "modular": STATES,
    "parity": STATES,
    "bytes": SWEEP,
    "reverse": ("softmax",),
    "sort": ("softmax",),
    "numbers": ("softmax",),
    "dates": ("transformer", "bahdanau", "luong", "lstmn"),
    "digit_patches": ("softmax",),
    "digits": ("softmax", "lstm", "gru", "conv", "depthwise_conv", "fnet", "average"),
    "pathfinder": ("small",),
    "listops_small": ("softmax",),
    "zoo": SWEEP,
}
AFTER = {"parity": "modular"}  # also run from the best parameters of that one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A run has its config's `train.steps`, but at most `steps`; `fields` are changed in all."""

    seeds: int = 3
    steps: int = 4000
    configs: tuple[str, ...] = tuple(CONFIGS)
    fields: tuple[tuple[str, Any], ...] = ()

    def planned(self, config: str) -> list[Planned]:
        """Seed by seed."""
        name, _, argument = config.partition(":")
        file = str(provenance.ROOT / f"configs/{name}.py")
        changes = [f"--config.{k}={v}" for k, v in self.fields]
        if CONFIGS[config] == SWEEP:  # which may be over seeds of its own
            every = plan(read_sweep(f"{file}:{argument}" if argument else file, changes))
        else:
            every = [Planned(x, read(f"{file}:{x}", changes)) for x in CONFIGS[config]]
        models = firsts(every).values()
        runs = [p.having({"seed": seed}) for seed in range(self.seeds) for p in models]
        return [self._shortened(p) for p in runs]

    def _shortened(self, p: Planned) -> Planned:
        train = p.experiment.train
        fields = ("steps", "eval_every", "save_every")
        longer = {f"train.{f}": self.steps for f in fields if getattr(train, f) > self.steps}
        return p.having(longer) if longer else p


def measure(s: Settings, folder: Path) -> dict[str, Any]:
    """What each run of each config came to, those of one model by seed, of the checkpoint best on
    validation; what has no result, with its error."""
    ended, found, missing = {}, {}, {}
    for config in s.configs:
        planned = s.planned(config)
        if first := ended.get(AFTER.get(config)):
            planned += [_after(p, AFTER[config], first) for p in planned]
        ended[config] = cells = Cells(folder, tuple(planned))
        cells.work(functools.partial(train.run, progress=False), "", tell)
        models: dict[str, dict[str, Any]] = {}
        outcomes = cells.found()
        for p, cell in zip(cells.planned, outcomes, strict=True):
            if cell.result is None:
                missing[f"{config} {p.name}"] = cell.error
                continue
            size = {"parameters": quantities.params(p.experiment)}
            row = models.setdefault(p.variant, size | {"accuracy": [], "loss": [], "seconds": []})
            row["accuracy"].append(cell.result["test"]["accuracy"])
            row["loss"].append(cell.result["test"]["loss"])
            row["seconds"].append(cell.result["wall_seconds"])
        rows = planned[0].experiment.posed.size("test")
        told = {"test rows": rows, "baselines": baselines(outcomes)}
        found[config] = {"models": models, **told}
    runs = (cells.folder(p) for cells in ended.values() for p in cells.planned)
    return {"configs": found, "without result": missing, "trained": trained(runs)}


def _after(p: Planned, name: str, ended: Cells) -> Planned:
    """The run from the best parameters of the run of `ended` with its model and seed."""
    same = lambda q: (q.variant, q.experiment.seed) == (p.variant, p.experiment.seed)
    folder = next(ended.folder(q) for q in ended.planned if same(q))
    made = p.having({"init_from": str(folder)})
    return dataclasses.replace(made, variant=f"{p.variant} after {name}")

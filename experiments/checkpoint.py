"""Checkpoints: Orbax writes the arrays, a manifest vouches for every byte of them.

`<directory>/<step>/` is whole from the moment it has that name: it is written as `partial-<step>`
and renamed when its manifest is on the disk. A damaged one is set aside as `damaged-<step>`.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from absl import logging
from jaxtyping import PyTree
from orbax.checkpoint import v1 as ocp

from experiments import disk, manifest
from experiments.config import Experiment
from experiments.errors import CheckpointError, NonFiniteError
from experiments.validation import differences, to_dict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one run: of its configuration, and of data with this fingerprint."""

    directory: Path
    config: dict[str, Any]
    data: str
    keep: int

    @classmethod
    def of(cls, workdir: Path, experiment: Experiment) -> Self:
        return cls(
            directory=workdir / "checkpoints",
            config=to_dict(experiment),
            data=experiment.posed.fingerprint(),
            keep=experiment.train.keep,
        )

    def save(self, step: int, state: PyTree, *, progress: dict[str, Any], best: int | None) -> None:
        """Writes a checkpoint; keeps the latest and their best. Raises CheckpointError, leaving
        earlier ones intact, and NonFiniteError for a state that is not worth keeping."""
        partial, final = self.directory / f"partial-{step}", self.directory / str(step)
        arrays = flatten(state)
        for name, x in arrays.items():
            if not np.isfinite(x).all():
                raise NonFiniteError(f"checkpoint {step} is not written: {name} is not finite")
        body = {
            "step": step,
            "config": manifest.short(self.config),
            "settings": self.config,
            "data": self.data,
            "progress": progress,
            "best": best,
            "arrays": {name: _describe(x) for name, x in arrays.items()},
        }
        try:
            disk.make(self.directory)
            self._clear()
            with _unlogged(), disk.literal(partial) as where:
                ocp.save(where, arrays)
            manifest.write(partial, body)
            _discard(final)
            partial.rename(final)
            disk.sync(self.directory)
            # A kept one needs the best that it knows of, or it is no good to go on from.
            latest = sorted(self.steps())[-self.keep :]
            for old in set(self.steps()) - {*latest, *map(self._best_of, latest)}:
                _discard(self.directory / str(old))
        except Exception as error:  # Orbax's are of many kinds
            self._clear()  # on a full disk it is in the way
            message = f"checkpoint {step} could not be saved to {self.directory}: {error}"
            raise CheckpointError(message) from error

    def restore(
        self, state: PyTree, *, tell: Callable[[str], None] = print
    ) -> tuple[PyTree, dict[str, Any]] | None:
        """The newest good state and its progress, in the form of `state`; None if none was saved.

        A state is good if its checkpoint and the best one it knows of are as they were written.
        Raises CheckpointError if there are some and none is good, or a good one is another run's.
        """
        steps = sorted(self.steps(), reverse=True)
        damaged = {}
        for step in steps:
            try:
                body = self._verify(step)
                if body["best"] not in (None, step):
                    self._verify(body["best"])
            except manifest.Damaged as error:
                damaged[step] = f"checkpoint {step} in {self.directory} is damaged: {error}"
                continue
            restored = self._load(step, body, state)
            for bad, message in damaged.items():
                tell(f"{message}; going on from step {step}")
                aside = self.directory / f"damaged-{bad}"
                _discard(aside)
                (self.directory / str(bad)).rename(aside)
            self._clear()  # after the last step there is no save that would
            return restored, body["progress"]
        if damaged:
            raise CheckpointError(
                "no good checkpoint is left, and nothing is started over by itself:\n"
                + "\n".join(f"  {message}" for message in damaged.values())
                + "\n  to start over, give another --workdir or remove this one"
            )
        return None

    def load(self, step: int, state: PyTree) -> PyTree:
        """The state saved at `step`, in the form of `state`. Raises CheckpointError."""
        try:
            return self._load(step, self._verify(step), state)
        except manifest.Damaged as error:
            message = f"checkpoint {step} in {self.directory} is damaged: {error}"
            raise CheckpointError(message) from None

    def load_best(self, state: PyTree) -> tuple[PyTree, int]:
        """The state at the `best` step, and that step: a newer one if a continuing run replaced it
        meanwhile."""
        while True:
            step = self.best()
            try:
                return self.load(step, state), step
            except CheckpointError:
                if self.best() == step:
                    raise

    def best(self) -> int:
        """The step with the best validation so far. Raises CheckpointError if there is none."""
        for step in sorted(self.steps(), reverse=True):
            with contextlib.suppress(manifest.Damaged):
                if (best := self._verify(step)["best"]) is not None:
                    return best
        raise CheckpointError(f"no good checkpoint that was evaluated is in {self.directory}")

    def _clear(self) -> None:
        """Removes what a kill or an error left of a save."""
        for partial in self.directory.glob("partial-*"):
            shutil.rmtree(partial, ignore_errors=True)

    def steps(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        return [int(p.name) for p in self.directory.iterdir() if p.name.isdecimal()]

    def _best_of(self, step: int) -> int | None:
        with contextlib.suppress(manifest.Damaged):
            return manifest.read(self.directory / str(step))["best"]
        return None

    def _verify(self, step: int) -> dict[str, Any]:
        body = manifest.verify(self.directory / str(step))
        if body["step"] != step:
            raise manifest.Damaged(f"it holds step {body['step']}")
        return body

    def _load(self, step: int, body: dict[str, Any], state: PyTree) -> PyTree:
        where = f"checkpoint {step} in {self.directory}"
        expected = flatten(state)
        # Orbax would cast to the dtype asked for without a word.
        wanted = {name: _describe(x) for name, x in expected.items()}
        if lines := _differences(body["arrays"], wanted):
            raise CheckpointError("\n  ".join([f"{where} holds other arrays:", *lines]))
        if body["config"] != manifest.short(self.config):
            lines = differences(body.get("settings", {}), self.config)
            raise CheckpointError("\n  ".join([f"{where} is of another configuration:", *lines]))
        if body["data"] != self.data:
            raise CheckpointError(f"{where} is of other data: {body['data']}, not {self.data}")
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        try:
            with disk.literal(self.directory / str(step)) as folder:
                arrays = ocp.load(folder, jax.tree.map(like, expected))
        except Exception as error:  # Orbax's are of many kinds
            raise CheckpointError(f"{where} could not be loaded: {error}") from error
        return jax.tree.unflatten(jax.tree.structure(state), [arrays[name] for name in expected])


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Orbax logs, with its traceback, each error that it also raises."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)
    yield
    # Not after an error: its other threads may still be failing.
    logging.set_verbosity(before)


def flatten(tree: PyTree) -> dict[str, jax.Array]:
    """Each leaf under its dotted path, in the order of `jax.tree.leaves`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(p, simple=True, separator="."): x for p, x in leaves}


def _describe(x: jax.Array) -> dict[str, Any]:
    return {"shape": list(x.shape), "dtype": str(np.dtype(x.dtype))}


def _differences(there: dict[str, dict], here: dict[str, dict]) -> list[str]:
    show = lambda x: f"{x['dtype']}{x['shape']}" if x else "nothing"
    names = [n for n in {**there, **here} if there.get(n) != here.get(n)]
    return [f"{n}: {show(there.get(n))} there, {show(here.get(n))} here" for n in names]


def _discard(folder: Path) -> None:
    """Removes a checkpoint, so that a kill halfway leaves nothing that looks like one."""
    if folder.exists():
        doomed = folder.with_name(f"partial-{folder.name}-removed")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)

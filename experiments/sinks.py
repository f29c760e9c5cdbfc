"""Where else metrics go, as --sink says. metrics.jsonl is the record; these are copies of it.

One that fails is left out from then on, with one warning: it never stops or changes a run.
"""

import contextlib
import importlib.util
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from absl import flags

from experiments.redact import redacted


class Sink(Protocol):
    """Opened at the first row of a session, whose step is `first`."""

    def __init__(self, workdir: Path, first: int) -> None: ...
    def write(self, step: int, numbers: dict[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in DIR/tensorboard, where each number is once `write` returns. By the writer
    inside tensorboardX's own: that one's thread ends on a full disk, and the run would wait for it
    without end."""

    def __init__(self, workdir: Path, first: int) -> None:
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2

        self.event, self.scalar = event_pb2.Event, summary.scalar
        (folder := workdir / "tensorboard").mkdir(exist_ok=True)
        self.writer = event_file_writer.EventsWriter(str(folder / "events"))
        self.close = self.writer.close
        # the first step hides what a session that was killed wrote of later ones
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=first, session_log=start)

    def write(self, step: int, numbers: dict[str, float]) -> None:
        for name, x in numbers.items():
            self._add(step=step, summary=self.scalar(name, x))
        self.writer.flush()

    def _add(self, **fields: Any) -> None:
        self.writer.write_event(self.event(wall_time=time.time(), **fields))


class WandB:
    """A run of W&B in DIR/wandb for each session, offline: `wandb sync` sends it."""

    def __init__(self, workdir: Path, first: int) -> None:
        import wandb

        config, where = json.loads((workdir / "config.json").read_text()), str(workdir)
        # no command line, which may hold a secret
        quiet = wandb.Settings(silent=True, console="off", x_disable_meta=True)
        options = {"group": workdir.name, "dir": where, "config": config, "settings": quiet}
        self.run = wandb.init(project="attn", mode="offline", **options)
        self.close = self.run.finish

    def write(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(numbers, step=step)


SINKS: dict[str, type[Sink]] = {"tensorboard": TensorBoard, "wandb": WandB}
NEEDS = {"tensorboard": "tensorboardX", "wandb": "wandb"}  # packages
INSTALL = "pip install 'attn-lab[log]'"


def define_sinks(values: flags.FlagValues) -> None:
    what = "copy metrics there too; may be given for each"
    flags.DEFINE_multi_enum("sink", [], [*SINKS], what, flag_values=values)
    flags.register_validator("sink", _installed, flag_values=values)


def _installed(names: Sequence[str]) -> bool:
    """Before hours of training whose metrics would not be copied. Raises ValidationError."""
    for package in (NEEDS[name] for name in names):
        if importlib.util.find_spec(package) is None:
            raise flags.ValidationError(f"needs {package}, which is not installed: {INSTALL}")
    return True


class Sinks:
    """The sinks of these names, as one; a context that closes them."""

    def __init__(self, names: Iterable[str], workdir: Path, *, warn: Callable[[str], None]) -> None:
        self.workdir, self.warn = workdir, warn
        self.sinks: dict[str, Sink | None] = dict.fromkeys(names)  # None: not opened yet

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        from experiments.validation import flat  # not for a command's mistake: it imports jax

        for name in [*self.sinks]:
            with self._left_out_if_it_fails(name):
                sink = self.sinks[name] or SINKS[name](self.workdir, rows[0]["step"])
                self.sinks[name] = sink
                for row in rows:
                    values = {k.replace(".", "/"): x for k, x in flat(row).items() if k != "step"}
                    numbers = {k: x for k, x in values.items() if isinstance(x, int | float)}
                    sink.write(row["step"], numbers)

    @contextlib.contextmanager
    def _left_out_if_it_fails(self, name: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # packages that are asked to log may exit
            del self.sinks[name]
            why = redacted(f"{type(error).__name__}: {error}")
            if isinstance(error, ImportError):
                why += f"; {INSTALL}"
            self.warn(f"--sink={name} failed, and the run goes on without it: {why}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name, sink in [*self.sinks.items()]:
            if sink:
                with self._left_out_if_it_fails(name):
                    sink.close()

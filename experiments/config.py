"""Experiment: everything that decides a run's numbers, typed, frozen and checked by pydantic.

A config file gives it as nested plain values (`experiments.config_file` reads them); a task or a
mechanism is written `{"name": key, field: value, ...}` with its key in TASKS or TOKEN_MIXERS.
"""

import dataclasses
import functools
import math
from typing import Annotated, Any, Literal, Union

import pydantic
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from attn import MECHANISMS, Causal, Mechanism, Softmax
from attn.nn import MIXERS, Mixer
from attn.nn.config import EncoderConfig
from attn.nn.config_rules import choices
from attn.positions import Rotary
from experiments import tasks
from experiments.errors import nearest
from experiments.tasks import Inputs, Objective, Task

Count = Annotated[int, Field(ge=1, lt=2**31)]
Depth = Annotated[int, Field(ge=1, le=10_000)]  # more would only fill the memory
Rate = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]

MASK_RATE = 0.15  # BERT's
CHOICES = choices(EncoderConfig)
# of what they hold now the types below are made
TASKS = {**tasks.TASKS}
TOKEN_MIXERS = {**MECHANISMS, **MIXERS}  # what a layer may mix tokens by

record = functools.partial(
    pydantic.dataclasses.dataclass,
    frozen=True,
    kw_only=True,
    # deferred until `experiments.own` has looked at what the user added to the tables
    config=pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True),
)


def name_of(value: Task | Mechanism | Mixer) -> str:
    """The key of a record's class in its table."""
    table = TASKS if isinstance(value, Task) else TOKEN_MIXERS
    return next(name for name, cls in table.items() if cls is type(value))


def _tag(value: Any) -> str | None:
    if isinstance(value, dict):
        name = value.get("name")
        return name if isinstance(name, str) else None
    return name_of(value) if type(value) in {*TASKS.values(), *TOKEN_MIXERS.values()} else None


def _without_name(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    # JSON has no tuples, and pydantic's strict mode takes no list for one behind a validator.
    deep = lambda v: tuple(map(deep, v)) if isinstance(v, list) else v
    return {k: deep(v) for k, v in value.items() if k != "name"}


def _hashable(value: Any) -> Any:
    """Raises ValueError for a record that is not: programs are kept by it."""
    try:
        hash(value)
    except TypeError as error:
        what = "expected fields that can be hashed, such as texts, numbers and tuples"
        raise ValueError(f"{what}, got one that cannot: {error}") from None
    return value


def by_name(value: Any) -> Any:
    """A bare name as the record that it stands for, with all its defaults."""
    return {"name": value} if isinstance(value, str) else value


def _one_of(table: dict[str, type]) -> Any:
    checks = BeforeValidator(_without_name), AfterValidator(_hashable)
    records = [Annotated[c, *checks, Tag(n)] for n, c in table.items()]
    # BeforeValidator last, so that it runs first: a bare name means all defaults.
    return Annotated[Union[tuple(records)], Discriminator(_tag), BeforeValidator(by_name)]


OneTask = _one_of(TASKS)
OneMechanism = _one_of(TOKEN_MIXERS)


def _attention_tag(value: Any) -> str:
    return "per layer" if isinstance(value, list | tuple) else "all"


@record
class Model:
    """The encoder: the fields of `attn.nn.EncoderConfig` that the task does not decide. For a task
    from one sequence to another, the encoder and the decoder, of a `family`."""

    family: Literal["transformer", "bahdanau", "luong", "lstmn"] = "transformer"
    attention: Annotated[
        Annotated[OneMechanism, Tag("all")]
        | Annotated[tuple[OneMechanism, ...], BeforeValidator(tuple), Tag("per layer")],
        Discriminator(_attention_tag),
    ] = Softmax()
    cross: OneMechanism = Softmax()  # by which a decoder reads what the encoder gives
    causal: bool = False
    layers: Depth = 2
    width: Count = 64
    heads: Count = 4
    kv_heads: Count | None = None
    head_dim: Count | None = None
    mlp_width: Annotated[int, Field(ge=0, lt=2**31)] = 128
    pooling: Literal["cls", "last", "mean", "max"] = "mean"  # where a sequence has one label
    head_width: Count | None = None  # where it has: of the layer before it; None is mlp_width
    positions: Literal[CHOICES["positions"]] = "sinusoidal"
    columns: Count | None = None  # of positions "grid"
    rotary: Rotary = Rotary()
    activation: Literal[CHOICES["activation"]] = "gelu"
    norm: Literal[CHOICES["norm"]] = "layer"
    norm_position: Literal[CHOICES["norm_position"]] = "pre"
    norm_epsilon: float = 1e-6
    embedding_norm: bool = False
    bias: bool = False
    qk_norm: bool = False
    dropout: float = 0.0
    tied: bool = False
    scan: bool = False
    remat: bool = False
    dtype: Literal[CHOICES["dtype"]] = "float32"

    def __post_init__(self) -> None:
        mistakes = []
        try:
            self.encoder(vocab_size=1, max_length=1, classes=1, head="classification")
        except ValueError as error:
            mistakes += str(error).replace("mechanism:", "attention:").split("\n")
        given = self.attentions
        if refusing := [name_of(m) for m in given if self.causal and Causal not in m.honours]:
            mistakes.append(f"causal: {' and '.join(refusing)} cannot be causal")
        if needing := [name_of(m) for m in given if not self.causal and Causal in m.requires]:
            what = f"{' and '.join(needing)}, defined with a causal mask only"
            mistakes.append(f"causal: expected True for {what}, got False")
        if self.positions == "xpos" and not self.causal:
            mistakes.append("causal: expected True with positions='xpos', got False")
        if mistakes:
            raise ValueError("\n".join(mistakes))

    @property
    def attentions(self) -> tuple[Mechanism | Mixer, ...]:
        """One for all layers, or one for each."""
        return self.attention if isinstance(self.attention, tuple) else (self.attention,)

    @property
    def sees_past_alone(self) -> bool:
        """Whether tokens see no later ones, by the mask or by the mixer of every layer."""
        return self.causal or all(isinstance(m, Mixer) and m.past_only for m in self.attentions)

    def encoder(self, *, head: str, **sizes: int | None) -> EncoderConfig:
        """`sizes` are a task's. Raises ValueError with one line for each mistake."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["causal"]  # said at call time, as a mask
        del fields["family"], fields["cross"]  # say what is built
        fields["mechanism"] = fields.pop("attention")
        if head == "token":
            fields |= {"pooling": "none", "head_width": None}
        return EncoderConfig(**sizes, head=head, **fields)


@record
class Optimizer:
    """AdamW with a learning-rate schedule; see `experiments.optimizer`."""

    learning_rate: Positive
    schedule: Literal["constant", "linear", "cosine", "rsqrt"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0, lt=2**31)] = 0
    final_learning_rate: Annotated[float, Field(ge=0)] = 0.0  # linear's, cosine's last update
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    b1: Rate = 0.9
    b2: Rate = 0.999
    eps: Positive = 1e-8
    clip_norm: Positive | None = 1.0  # None: no clipping

    def __post_init__(self) -> None:
        if self.final_learning_rate and self.schedule not in ("linear", "cosine"):
            raise ValueError(
                f"final_learning_rate: expected 0 with schedule={self.schedule!r}, which has no "
                f"end, got {self.final_learning_rate}"
            )


NONFINITE_LIMIT = 10


@record
class Train:
    """How long a run trains, on how much at once, what it saves, and what it does about failures.

    A batch whose loss, gradients or update are not finite stops the run; or "skip" goes on as if it
    had never come, "rollback" returns to the newest checkpoint and skips it from there. A
    checkpoint that cannot be written stops the run too, or it goes on to the next ("continue"). One
    call of the device makes at most `steps_per_call` steps, and signals are handled between calls.
    """

    steps: Count
    batch_size: Count
    eval_batch_size: Count = 256
    eval_every: Count = 100  # validation also follows the last step
    save_every: Count = 500
    keep: Count = 2  # latest checkpoints kept beside the best
    steps_per_call: Annotated[int, Field(ge=1, le=1000)] = 1  # `together` says how many
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    nonfinite_limit: Count = NONFINITE_LIMIT  # batches that a run may do without
    on_save_error: Literal["stop", "continue"] = "stop"  # the last step's always stops

    def __post_init__(self) -> None:
        if self.on_nonfinite == "stop" and self.nonfinite_limit != NONFINITE_LIMIT:
            what = "its default with on_nonfinite='stop', which does without none"
            raise ValueError(f"nonfinite_limit: expected {what}, got {self.nonfinite_limit}")

    @property
    def together(self) -> int:
        """How many steps one program makes: the most, up to `steps_per_call`, that divide the steps
        between two evaluations, between two saves, and in all."""
        between = math.gcd(self.steps, self.eval_every, self.save_every)
        return max(n for n in range(1, self.steps_per_call + 1) if between % n == 0)


@record
class Experiment:
    """All settings of a run. `objective` "masked" or "causal" learns the task's own inputs in place
    of its labels; `init_from` is the directory of a run (one that has ended, in a comparison) whose
    best parameters this one starts from."""

    task: OneTask
    model: Model
    optimizer: Optimizer
    train: Train
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    objective: Objective = "label"
    mask_rate: Annotated[float, Field(gt=0, le=1)] = MASK_RATE
    init_from: str = ""

    def __post_init__(self) -> None:
        causal, masked, posed = self.model.causal, self.objective == "masked", self.posed
        if posed.causal and not causal:
            what = f"objective='{self.objective}' of {name_of(self.task)}"
            what += ", whose answers are later tokens"
            raise ValueError(f"model.causal: expected True with {what}, got False")
        if self.model.cross != Softmax() and posed.head != "sequence":
            what = f"{name_of(self.task)}, which has no decoder"
            raise ValueError(f"model.cross: expected its default with {what}, got another")
        if masked and causal:
            raise ValueError("model.causal: expected False with objective='masked', got True")
        if not masked and self.mask_rate != MASK_RATE:
            raise ValueError(
                f"mask_rate: expected its default with objective={self.objective!r}, which hides "
                f"nothing, got {self.mask_rate}"
            )

    @property
    def posed(self) -> Task:
        """The task that is learned: the given one, or its inputs."""
        if self.objective == "label":
            return self.task
        return Inputs(task=self.task, objective=self.objective, rate=self.mask_rate)


def mechanism(name: str, **fields: Any) -> dict[str, Any]:
    """A mechanism, or a mixer such as "lstm", for a config file, every field filled in. Raises
    ValueError for a bad name."""
    return _plain(TOKEN_MIXERS, "mechanism", name, fields)


def task(name: str, **fields: Any) -> dict[str, Any]:
    """A task for a config file, every field filled in. Raises ValueError for a bad name."""
    return _plain(TASKS, "task", name, fields)


def _plain(table: dict[str, type], kind: str, name: str, fields: dict) -> dict[str, Any]:
    if name not in table:
        now, called, file = {
            "task": (tasks.TASKS, "TASKS", "experiments/tasks/__init__.py"),
            "mechanism": (MECHANISMS, "MECHANISMS", "attn/__init__.py"),
        }[kind]
        if name in now:  # since
            what = f"added to {called} too late; its line belongs in {file}"
            raise ValueError(f"{kind} {name!r}: {what}")
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, table)}")
    default = table[name]()
    filled = {f.name: getattr(default, f.name) for f in dataclasses.fields(default)}
    return {"name": name, **filled, **fields}

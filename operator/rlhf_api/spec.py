"""`spec` of an RLHFJob: what to train, on what data, and how; the roles' sections are in `roles.py`."""

import difflib
import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, WithJsonSchema, create_model

from .algorithms import ALGORITHMS, CUSTOM
from .base import (
    COLDEST,
    HOTTEST,
    OBJECT,
    Controller,
    Decay,
    DType,
    Epsilon,
    Frozen,
    ModelField,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    StoreUrl,
)
from .chat_template import argument_problem
from .deepspeed import DeepSpeedConfig
from .evaluation import Evaluation
from .health import Health
from .model import Model
from .pods import PodSettings, RuntimeReference, Scheduling, Workspace
from .replay import Replay
from .rewards import Reward
from .roles import Generator, ModelServerSpec, Reference, Role, RoleSpec, Trainer
from .rollout import Rollout
from .sources import Source
from .trackers import Tracker


def _known(name: str) -> str:
    if name in ALGORITHMS or re.fullmatch(OBJECT, name):
        return name
    close = difflib.get_close_matches(name.lower(), ALGORITHMS, n=1)
    hint = f'; did you mean "{close[0]}"?' if close else ""
    raise ValueError(f"must be one of {', '.join(ALGORITHMS)}, or module:name of your own{hint}")


AlgorithmName = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(ALGORITHMS)}|{OBJECT})$"}),
]
"""An entry of `rlhf_api.algorithms.ALGORITHMS`, or an algorithm of one's own as `module:name`."""


def _arguments(given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if wrong := argument_problem(given):
        raise ValueError(wrong)
    return given


class Data(Frozen):
    """Files of rows: `{prompt, answer}` or `{messages}` for `sft`, `{prompt, chosen, rejected}` or
    `{prompt, pos_answers, neg_answers}` for `reward` and `dpo`, `{prompt}` where responses are sampled."""

    train: tuple[str, ...] | None = Field(None, min_length=1)
    """JSON, JSONL or Parquet: paths, or URLs (`s3://`, `gs://`, `az://`), each alone or as `path::weight`."""
    sources: tuple[Source, ...] | None = Field(None, min_length=1)
    """The same as `train`, as objects."""
    samples_per_epoch: Positive | None = None
    """Samples per epoch, drawn from all sources by their weights; the number of rows unless given."""
    system_prompt: str | None = None
    """System prompt of every conversation that has none; a prompt of plain text becomes the user's turn after it."""
    chat_template: str | None = None
    """Chat template of conversations: Jinja, or a file of it; the tokenizer's own unless given."""
    chat_template_kwargs: Annotated[dict[str, JsonValue], AfterValidator(_arguments)] = {}
    """Variables of the chat template, such as `enable_thinking: false`; a row's `chat_template_kwargs` come first."""
    max_prompt_length: Positive = 512
    """Maximum prompt length in tokens."""
    max_answer_length: Positive = 512
    """Maximum response length in tokens, for algorithms that train on given responses."""
    overlong: Literal["refuse", "drop", "cut"] = "refuse"
    """Rows with a longer prompt or response: refuse the job, leave the rows out, or cut. A text prompt keeps its last
    tokens, a conversation its last turns; a response its first tokens, without an end token."""
    prompts_per_step: Positive = 64
    """Rows drawn for each training step."""


MOST_KEPT = 256
"""The highest `topK` whose sampling mask is replayed."""


StopString = Annotated[str, Field(min_length=1, max_length=256)]


class Sampling(Frozen):
    """Sampling of responses."""

    temperature: float = Field(1.0, ge=COLDEST, le=HOTTEST)
    """Sampling temperature; log-probabilities of policy and reference are computed at it too."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 switches it off. Training applies the same mask only if topK is set too."""
    top_k: int = Field(-1, ge=-1)
    """Top-k sampling; -1 or 0 switches it off. Up to 256, training applies the same mask: log-probabilities are over
    the tokens kept."""
    min_new_tokens: int = Field(0, ge=0)
    """Minimum response length in tokens, before which the end token is banned. The trainer's log-probabilities account
    for that only if topK is set too."""
    max_new_tokens: Positive = 256
    answer_end_id: int | None = Field(None, ge=0)
    """An additional end token, besides those of the tokenizer and of the policy's generation_config.json."""
    stop: tuple[StopString, ...] = Field((), max_length=16)
    """Stop strings: a response ends with the token that completes one, and its text ends before it."""
    answers_per_prompt: Positive = 1

    @property
    def kept(self) -> int:
        """Maximum size of a sampling mask that training replays; else 0."""
        return self.top_k if 0 < self.top_k <= MOST_KEPT else 0

    @property
    def cut(self) -> bool:
        """True if tokens are left out, or the end token is banned, and training does not replay that."""
        return not self.kept and (self.top_p < 1 or self.top_k > 0 or self.min_new_tokens > 0)


class Pretraining(Frozen):
    """A language-modelling loss mixed into each update of a policy whose responses are sampled (PPO-ptx)."""

    data: tuple[str, ...] = Field(min_length=1)
    """Files of rows `{prompt, answer}`."""
    rows_per_update: Positive = 16
    coefficient: PositiveFloat = 0.1
    """Factor of the mean negative log-likelihood of the response's tokens, in nats, added to the policy loss."""


CRITIC_RATE = 10.0
"""Learning rate of a critic, as a multiple of a whole policy's (see docs/algorithms.md for the source)."""
WHOLE_CRITIC = 1e-5
"""Learning rate of a whole critic beside a policy's adapter: `CRITIC_RATE` times the default of a whole policy."""


class Optimizer(Frozen):
    """AdamW, for every trained model."""

    learning_rate: NonNegativeFloat = 1e-6
    critic_learning_rate: NonNegativeFloat | None = None
    """Learning rate of the critic. Unless given ten times `learningRate`; beside a policy with an adapter,
    `learningRate` for a critic with one too and 1e-5 for a whole critic."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    """Training steps in which the learning rate rises to its value."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    epsilon: Epsilon = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    gradient_clip: PositiveFloat = 1.0
    """Maximum 2-norm of the whole gradient."""


class Weights(Frozen):
    """The broadcast of the policy to the generators."""

    every_steps: Positive = 1
    """Number of steps from one broadcast to the next; in the steps between, the old log-probabilities are the
    generators'."""
    timeout_seconds: PositiveFloat = 30.0
    """Deadline of each broadcast; a generator that misses it is left behind until it comes back."""
    bucket_megabytes: Positive = 512
    """Bucket size of the broadcast; two buckets are held in the first trainer GPU's memory."""


class Origin(Frozen):
    """A checkpoint of another run, to start from; `rlhf clone` writes this."""

    store: StoreUrl
    """The other run's store, readable with this run's credentials."""
    step: Positive


class Checkpoint(Frozen):
    """Checkpoints of the run: their store, how often, and which stay."""

    store: StoreUrl | None = None
    """`file://`, `s3://`, `gs://` or `az://`; `checkpoints` in the work directory unless given."""
    every_steps: Positive = 10
    resume: bool = False
    """Resume from the checkpoints of an earlier run in the store; without any, start anew."""
    start_from: Origin | None = None
    """Start from a step of another run, by a copy of its checkpoint, unless this run has checkpoints of its own."""
    keep_last: Positive = 2
    """Number of newest checkpoints to keep; older ones are deleted, except those of `keepEvery` and `keepBest`."""
    keep_every: int = Field(0, ge=0)
    """Checkpoints of steps that are multiples of this are kept too; 0: none."""
    keep_best: int = Field(0, ge=0)
    """Number of checkpoints with the best evaluation that are kept too: the highest mean, or the lowest loss where
    given responses are trained on; with several sets, their mean."""
    timeout_seconds: Positive = 600
    """Retry deadline of a store that does not respond; training continues meanwhile until the next checkpoint."""


class Export(Frozen):
    """The trained models in the work directory, in Hugging Face format."""

    every_steps: int = Field(0, ge=0)
    """Steps from one export to the next, each in place of the one before; 0: only one, at the end."""


if TYPE_CHECKING:
    Sections = Frozen
else:  # one section for each algorithm that has settings
    _TABLE = {a.name: a.settings for a in (*ALGORITHMS.values(), CUSTOM) if a.settings}
    Sections = create_model(
        "Sections", __base__=Frozen, **{name: (model, model()) for name, model in _TABLE.items()}
    )


class Spec(Sections):
    """An RLHF run."""

    algorithm: AlgorithmName
    """`sft`, `reward` (a reward model), `dpo`, `ppo`, `grpo`, `dr_grpo`, `rloo`, `reinforce_pp`, `gspo`, `cispo`, or
    your own as `module:name`. Its settings are in the section of its name, `custom` for your own."""
    steps: Positive
    """Training steps of the whole run."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of data order, sampling and fresh weights; the same seed gives the same first step."""
    model: Model
    data: Data
    sampling: Sampling = Sampling()
    replay: Replay = Replay()
    rollout: Rollout = Rollout()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation | None = None
    pretraining: Pretraining | None = None
    trainer: Trainer = Trainer()
    generator: Generator = Generator()
    reward: Reward = Reward()
    reference: Reference = Reference()
    weights: Weights = Weights()
    checkpoint: Checkpoint = Checkpoint()
    export: Export = Export()
    health: Health = Health()
    trackers: tuple[Tracker, ...] = Field((Tracker(kind="tensorboard"),), max_length=8)
    """Trackers that get the metrics besides `metrics.jsonl`; `[]` for none."""
    environment: dict[str, str] = {}
    """Environment variables of every role; they must not hold secrets."""
    suspend: bool = False
    """On a cluster: checkpoint, then release all pods; false resumes from there."""
    active_deadline_seconds: Positive | None = None
    """On a cluster: the job fails after this running time, suspended time not counted."""
    ttl_seconds_after_finished: int | None = Field(None, ge=0)
    """On a cluster: the job is deleted this long after its end."""
    pod_retention: Literal["never", "onFailure", "always"] = "never"
    """On a cluster: when servers that still run at the job's end stay, with their GPUs."""
    managed_by: Controller | None = None
    """On a cluster: the job's controller, `rlhf.dev/operator` unless given. It never changes."""
    runtime: RuntimeReference | None = None
    pods: PodSettings = PodSettings()
    """On a cluster: settings of the pods of every role."""
    workspace: Workspace = Workspace()
    scheduling: Scheduling = Scheduling()

    def section(self, role: Role) -> RoleSpec:
        """The role's section."""
        found: RoleSpec = getattr(self, role.value)
        return found

    def model_server(self, role: Role) -> ModelServerSpec:
        """The section of a role that runs a frozen model."""
        found = self.section(role)
        assert isinstance(found, ModelServerSpec), f"{role.value} runs no frozen model"
        return found

    def learning_rate(self, field: ModelField) -> float:
        """Highest learning rate of the trained model in this field. A critic's follows what is trained: a policy's
        adapter has some hundred times the rate of a whole model."""
        rate, critic_rate = self.optimizer.learning_rate, self.optimizer.critic_learning_rate
        if field != "critic":
            return rate
        if critic_rate is not None:
            return critic_rate
        if self.model.adapter("policy") is None:
            return CRITIC_RATE * rate
        return WHOLE_CRITIC if self.model.adapter("critic") is None else rate

    def trained_dtype(self, field: ModelField) -> DType:
        """The compute dtype of the trained model in this field of `model`."""
        own = self.trainer.critic_dtype if field == "critic" else None
        return own or self.trainer.dtype or self.model.dtype

    def trained_deepspeed(self, field: ModelField) -> DeepSpeedConfig:
        """DeepSpeed's configuration of the trained model in this field; a critic of another dtype takes no precision
        from the policy's."""
        shared, own = self.trainer.deepspeed, self.trainer.critic_deepspeed
        if field != "critic" or (own is None and self.trained_dtype(field) == self.trained_dtype("policy")):
            return shared
        return own or shared.model_copy(update={"bf16": None, "fp16": None})

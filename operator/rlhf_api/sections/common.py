"""The sections of every job's spec, whatever its algorithm."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..field_types import Controller, DType, Frozen, ModelField, Positive
from ..roles import Role
from .checkpoint import Checkpoint, Export
from .data import Data, Pretraining
from .deepspeed import DeepSpeedConfig
from .environment import Environment, move_variables, or_variables
from .evaluation import UNNAMED, Evaluation, EvaluationSet
from .experts import Experts
from .health import OUTLIERS_OF_8_BITS, OUTLIERS_OF_16_BITS, Health
from .model import Model
from .optimizer import CRITIC_RATE, WHOLE_CRITIC, Optimizer
from .pods import PodSettings, RuntimeReference, Scheduling, Workspace, combine, shared_settings
from .replay import Replay
from .reward import MODEL, Reward, ScoringModel
from .roles import Generator, ModelServerSpec, Reference, RoleSpec, Sandbox, Trainer, option_of
from .rollout import Rollout
from .samples import Samples
from .sampling import Sampling
from .trackers import Tracker
from .weights import Weights


class CommonSpec(Frozen):
    """A spec without the settings of algorithms, from which an algorithm makes its graph."""

    algorithm: str
    """Name of a built-in algorithm, or an import path."""
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
    experts: Experts = Experts()
    evaluation: Evaluation | None = None
    pretraining: Pretraining | None = None
    trainer: Trainer = Trainer()
    generator: Generator = Generator()
    reward: Reward = Reward()
    reference: Reference = Reference()
    weights: Weights = Weights()
    checkpoint: Checkpoint = Checkpoint()
    export: Export = Export()
    samples: Samples = Samples()
    health: Health = Health()
    trackers: tuple[Tracker, ...] = Field((Tracker(kind="tensorboard"),), max_length=8)
    """Trackers that get the metrics besides `metrics.jsonl`; `[]` for none."""
    env: dict[str, str] = {}
    """Environment variables of every role; they must not hold secrets."""
    environment: Annotated[Environment | None, or_variables(Environment)] = None
    sandbox: Sandbox | None = None
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
    placement: Literal["auto", "shared", "separate"] = "auto"
    """Trainer and vLLM on the same GPUs, or apart; `auto` shares if one machine has too few, on a cluster never."""
    workspace: Workspace = Workspace()
    scheduling: Scheduling = Scheduling()

    _move_variables = model_validator(mode="after")(move_variables)

    @property
    def longest_response(self) -> int:
        """Most tokens of a sampled response; of an episode, those of all turns and replies."""
        return self.sampling.max_new_tokens if self.environment is None else self.environment.max_tokens

    @property
    def has_reward(self) -> bool:
        """True if a reward model or functions score responses, beside an environment's own reward or without one."""
        return bool(self.reward_models or self.reward.functions)

    @property
    def reward_models(self) -> tuple[ScoringModel, ...]:
        """The reward models that the reward role loads: `model.reward` unless its weight is 0, and `reward.models`,
        where a score of weight 0 is measured alone, as that of a function."""
        path, section, models = self.model.reward, self.reward, list[ScoringModel]()
        if path is not None and section.model_weight != 0:
            models.append(ScoringModel(MODEL, "spec.model.reward", path, section.model_weight))
        for i, each in enumerate(section.models):
            where = f"spec.reward.models[{i}].model"
            models.append(ScoringModel(each.name, where, each.model, each.weight))
        return tuple(models)

    @property
    def role_sections(self) -> dict[Role, RoleSpec]:
        """The sections of roles, without those of an environment and a sandbox where the job has none."""
        return {role: own for role in Role if (own := getattr(self, role.value)) is not None}

    def section(self, role: Role) -> RoleSpec:
        """The role's section."""
        return self.role_sections.get(role, RoleSpec())

    def pods_of(self, role: Role) -> PodSettings:
        """Settings of a role's pods, its own over the job's."""
        return combine(shared_settings(self.pods, role), self.section(role).pods)

    def model_server(self, role: Role) -> ModelServerSpec:
        """The section of a role that runs a frozen model."""
        section = self.section(role)
        assert isinstance(section, ModelServerSpec), f"{role.value} runs no frozen model"
        return section

    def source(self, field: ModelField | Literal["tokenizer"]) -> tuple[str, str] | None:
        """The field of `model` that names what is loaded for `field`, and the path or hub name that it holds; None
        where the job creates that model. What is not given starts from the policy; the critic from a reward model that
        scores whole responses, if there is one: the reward of a token or step is no value.
        """
        of_parts = self.reward.fine_grained or self.reward.step_scores is not None
        scorer = "reward" if field == "critic" and not of_parts else "policy"
        for name in (field, scorer, "policy"):
            if path := getattr(self.model, name):
                return name, path
        return None

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

    def evaluation_sets(self) -> tuple[EvaluationSet, ...]:
        """The sets of `spec.evaluation`, with their number of samples and temperature resolved; empty without
        evaluation, and of one without data, which is refused."""
        section = self.evaluation
        if section is None or (section.sets is None and section.data is None):
            return ()
        given = section.sets or (EvaluationSet(name=UNNAMED, data=section.data or ()),)
        usual = self.sampling.temperature if section.temperature is None else section.temperature
        return tuple(
            held_out.model_copy(
                update={
                    "samples": held_out.samples or section.samples,
                    "temperature": usual if held_out.temperature is None else held_out.temperature,
                }
            )
            for held_out in given
        )

    def outlier_limit(self) -> float:
        """`logprobOutliers` in effect: by default that of the coarser of the two engines (docs/concepts/health.md)."""
        given, arguments = self.health.logprob_outliers, map(option_of, self.generator.engine_arguments)
        if given is not None:
            return given
        if not {"quantization", "kv-cache-dtype"}.isdisjoint(arguments):
            return OUTLIERS_OF_8_BITS
        dtypes = {self.trained_dtype("policy"), self.generator.dtype or self.model.dtype}
        return 0.0 if dtypes == {"float32"} else OUTLIERS_OF_16_BITS

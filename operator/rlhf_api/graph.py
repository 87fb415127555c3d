"""Dataflow graph of an algorithm: calls on models and roles, joined by the columns that they read and write.

Torch-free data. The trainer looks up each node's function by its key (`rlhf_trainer.ops`); everything else that depends
on the algorithm (roles, trained models, memory, data rows) is read off the graph.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from .field_types import Head, ModelField, RowKind
from .roles import Role, holder


class GraphError(ValueError):
    """The graph cannot run: a column without a writer, with two writers, or no training node."""


@dataclass(frozen=True)
class Model:
    """A model that the graph calls. `name` is its group in a snapshot; `field` the entry of `spec.model` that it
    starts from, and the folder that it is exported to."""

    name: str
    field: ModelField
    head: Head


POLICY = Model("policy", "policy", "causal")
CRITIC = Model("critic", "critic", "value")
REFERENCE = Model("reference", "reference", "causal")
SUPERVISED = Model("model", "policy", "causal")
REWARD_MODEL = Model("model", "policy", "score")
PROCESS_REWARD_MODEL = Model("model", "policy", "token_score")

SEQUENCES = "sequences"
"""Column of the tokens of prompts and responses, written by the first node."""
ENVIRONMENT_REWARD = "environment_reward"
"""Column of the rewards of episodes, which `Generate` writes in a job with an environment."""
REWARD = "reward/"
"""Begin of the names of columns of rows with the scores of each reward, before its weight."""
LABEL = "label"
"""Column of rows that a source of labeled ones writes: 1 desirable, -1 undesirable, 0 the next row's answer to a row's
prompt, with which `rows: labeled` come."""
GIVEN = "given"
"""Column of rows: 1 for a response that the dataset gives in place of a sampled one."""
TEACHER = "teacher"
"""Column of rows: the number of the teacher in `distillation.teachers`."""
STEP_LABEL = "step_label"
"""Column of response tokens that a source of rows with steps writes: at the last token of each step its label, from 0
(wrong) to 1 (right), and -1 elsewhere."""
MARGIN = "margin"
"""Column of rows that a source of graded ones writes: of both responses of a pair, by how much one is better."""
PREFERENCE = "preference"
"""Column of rows: 1 for the better response of a pair, -1 for the worse one, 0 for a response of no pair."""
REFERENCE_TOP = "reference_top"
"""Column of the reference's most probable tokens, K at each place: K log-probabilities, then K token ids."""
REFERENCE_COLUMNS = ("reference_logprobs", REFERENCE_TOP)
"""Columns that compare with a reference."""


def reward_column(name: str) -> str:
    """Column with the scores of the reward of that name."""
    return f"{REWARD}{name}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation. It runs once all columns that it reads exist, and is skipped if all that it writes exist."""

    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Generate(Node):
    """Samples responses to prompts of the dataset from the policy, on the generators or in the trainer.

    `rounds`: most rounds of fresh prompts that replace those whose responses all have the same score. `given`: share of
    the prompts whose row's own answer is their response; these rows are `responses`, and GIVEN is written. TEACHER is
    written where rows have teachers.
    """

    name: str = "generate"
    model: Model = POLICY
    rounds: int = 0
    given: float = 0.0
    writes: tuple[str, ...] = (SEQUENCES, "sampled_logprobs", "versions", "position", "finished")


@dataclass(frozen=True, kw_only=True)
class Dataset(Node):
    """Sequences made of dataset rows of kind `rows`; of a pair the chosen response, then the rejected one."""

    name: str = "dataset"
    rows: RowKind
    writes: tuple[str, ...] = (SEQUENCES,)

    @property
    def group(self) -> int:
        """Consecutive sequences that stay in one micro-batch: the two responses of a pair."""
        return 2 if self.rows in ("pairs", "graded") else 1


@dataclass(frozen=True, kw_only=True)
class Infer(Node):
    """A forward pass of `model` without gradients; `output` is the key of what is read from its logits. `average`: with
    the moving average of the model's weights, which keeps this share of itself at each step. `base`: with the model's
    adapter switched off."""

    model: Model
    output: str = "logprobs"
    average: float | None = None
    base: bool = False
    reads: tuple[str, ...] = (SEQUENCES,)


@dataclass(frozen=True, kw_only=True)
class Score(Node):
    """Rewards of the reward role: one number for each sequence, or for each response token; and after that column those
    of REWARD of single ones, if it writes any."""

    name: str = "score"
    reads: tuple[str, ...] = (SEQUENCES,)
    writes: tuple[str, ...] = ("scores",)
    per_token: bool = False


@dataclass(frozen=True, kw_only=True)
class Compute(Node):
    """A pure function over columns, the same on every rank; `function` is its key, or `module:name`."""

    function: str


def minibatch_count(sequences: int, size: int) -> int:
    """Number of minibatches of nearly equally many sequences, from 3/4 to 3/2 of `size` each, or all in one if they are
    fewer. So a response that is dropped takes no update away."""
    return max(1, (sequences + size // 2) // size)


@dataclass(frozen=True, kw_only=True)
class Train(Node):
    """Optimizer steps of `model` on minibatches; `loss` is the key of the loss, or `module:name`.

    `minibatch_size`: sequences of one update, over all ranks, as nearly as `minibatch_count` makes them; None: all of
    the step. `balance_tokens`: minibatches have equally many response tokens, in place of random rows. `epochs`: passes
    over each step's sampled responses; given ones are one update a step. `only`: column of rows, of which those with 0
    are left out. `pairs`: column of rows as PREFERENCE, by which the sampled responses to a prompt have one pair or
    none; the others are left out, and counted by `minibatch_size`. `from_step`: steps before this one leave the model
    as it is. `stop_ratio`: the rest of a step's updates is left out once the mean importance ratio of a minibatch is
    above this, or below its inverse.
    """

    model: Model
    loss: str
    output: str = "logprobs"
    minibatch_size: int | None = None
    balance_tokens: bool = False
    epochs: int = 1
    only: str | None = None
    pairs: str | None = None
    from_step: int = 0
    stop_ratio: float | None = None


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order: each one's columns are written before they are read."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise GraphError("; ".join(problems))

    @property
    def source(self) -> Generate | Dataset:
        """The first node, which creates the sequences."""
        (source,) = (n for n in self.nodes if isinstance(n, Generate | Dataset))
        return source

    def group(self, node: Train) -> int:
        """Consecutive rows of a training node that stay in one micro-batch: the two responses of a pair."""
        given = self.source.group if isinstance(self.source, Dataset) else 1
        return 2 if node.pairs else given

    @property
    def generates(self) -> bool:
        """True if responses are sampled during training."""
        return isinstance(self.source, Generate)

    @property
    def rows(self) -> RowKind:
        """Kind of the dataset's rows."""
        if isinstance(self.source, Generate):
            return "responses" if self.source.given else "prompts"
        return self.source.rows

    @cached_property
    def prepare(self) -> tuple[Node, ...]:
        """Nodes between the source and training."""
        return tuple(n for n in self.nodes if isinstance(n, Infer | Score | Compute))

    @cached_property
    def train(self) -> tuple[Train, ...]:
        """Training nodes, in order."""
        return tuple(n for n in self.nodes if isinstance(n, Train))

    @property
    def begins(self) -> int:
        """Number of initial steps in which some model is not trained (critic warm-up)."""
        return max(n.from_step for n in self.train)

    @cached_property
    def trained(self) -> tuple[Model, ...]:
        """Models with an optimizer, in the order of their training nodes."""
        return tuple(dict.fromkeys(n.model for n in self.train))

    @property
    def averages(self) -> Mapping[Model, float]:
        """Trained models whose moving average is inferred with, and the share that each average keeps of itself."""
        nodes = (n for n in self.prepare if isinstance(n, Infer))
        return {n.model: n.average for n in nodes if n.average is not None}

    def remote(self, node: Node) -> Role | None:
        """The role that computes a node; None if the trainer does."""
        if isinstance(node, Score):
            return Role.REWARD
        if isinstance(node, Infer) and node.model not in self.trained:
            return holder(node.model.field)
        return None

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Roles that the graph needs: the trainer, then those that compute one of its nodes."""
        needed = {Role.TRAINER, *map(self.remote, self.prepare)}
        if self.generates:
            needed.add(Role.GENERATOR)
        return tuple(role for role in Role if role in needed)

    def _problems(self) -> Iterator[str]:
        if sum(isinstance(n, Generate | Dataset) for n in self.nodes) != 1:
            yield "a graph has exactly one Generate or Dataset node"
            return
        if not self.train:
            yield "a graph trains at least one model: it has no Train node"
        written: dict[str, str] = {}
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                yield f"two nodes are named {node.name!r}"
            names.add(node.name)
            if text := next((part for part in (node.reads, node.writes) if isinstance(part, str)), None):
                yield f"node {node.name!r} has the text {text!r} for its columns; write ({text!r},)"
                return
            for column in node.reads:
                if column not in written:
                    known = ", ".join(written) or "none"
                    yield f"node {node.name!r} reads {column!r}, which no node before it writes; there are: {known}"
            for column in node.writes:
                if column in written:
                    yield f"node {node.name!r} writes {column!r}, which node {written[column]!r} has written"
                written[column] = node.name
            if isinstance(node, Infer) and len(node.writes) != 1:
                yield f"node {node.name!r} writes one column, not {len(node.writes)}"
            if isinstance(node, Train) and node.pairs:
                yield from self._paired(node, node.pairs)
            if isinstance(node, Score) and not self.generates:
                yield f"node {node.name!r} asks for rewards of a dataset's responses; only sampled ones have them"
            if isinstance(node, Infer) and node.model not in self.trained and not _frozen(node.model):
                yield f"node {node.name!r} calls {node.model.name!r}, which is neither trained nor the model of a role"
        yield from self._inferred()
        if isinstance(self.source, Generate) and self.source.model != POLICY:
            yield f"Generate samples from the policy, which generators serve, not from {self.source.model.name!r}"
        elif isinstance(self.source, Generate) and POLICY not in self.trained:
            yield "Generate samples from a model that no Train node trains"

    def _paired(self, node: Train, column: str) -> Iterator[str]:
        """Pairs are of sampled responses, and stay whole."""
        if not self.generates:
            yield f"node {node.name!r} pairs a dataset's responses, which come as pairs with rows: pairs"
        if column not in node.reads:
            yield f"node {node.name!r} pairs responses by {column!r}, which it does not read"
        if node.only is not None or node.balance_tokens:
            yield f"node {node.name!r} trains on pairs, which neither `only` nor `balance_tokens` may part"

    def _inferred(self) -> Iterator[str]:
        """A trained model has one moving average; the role of a frozen one has its weights alone, and one output."""
        inferred = [node for node in self.nodes if isinstance(node, Infer)]
        for node in inferred:
            if node.model not in self.trained and (node.average is not None or node.base):
                kind = "the base" if node.average is None else "a moving average"
                yield f"node {node.name!r} infers with {kind} of {node.model.name!r}, which no Train node trains"
        shares = {(node.model, node.average) for node in inferred if node.average is not None}
        outputs = {(node.model, node.output) for node in inferred if node.model not in self.trained}
        for used_models, what in ((shares, "moving averages"), (outputs, "outputs")):
            for model in sorted({model.name for model, _ in used_models}):
                if len(several := [str(each) for used, each in used_models if used.name == model]) > 1:
                    yield f"nodes infer with several {what} of {model!r}: {', '.join(sorted(several))}; use one"


def _frozen(model: Model) -> bool:
    """True if a role runs forward passes of the model."""
    role = holder(model.field)
    return role is not None and role.row.work == "infer"


VLLM_OUTPUTS = ("logprobs", "logprobs_untempered", "top_logprobs")
"""Outputs of a graph's nodes that vLLM can compute for a prompt."""

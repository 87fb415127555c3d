"""Optimizer steps of a graph's training nodes in one training step, the rows of each, and their metrics."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rlhf_api.dataset.rows import Row
from rlhf_api.graph import CRITIC, POLICY, Graph, Train, minibatch_count
from rlhf_api.spec import Spec

from ..data.dataset import stream
from ..graph.learner import Learner
from ..maths.agreement import AGREEMENT
from ..maths.groups import paired_rows
from ..maths.schedule import learning_rate
from ..ops import OF_TOKENS, loss_fn, train_output_fn
from ..ops.datasets import given_columns
from ..ops.pretraining import mixed
from ..process import faults
from ..process.timeline import RECORDER
from ..ranks.context import TrainerContext
from ..tensors.batches import MAXIMUM
from ..tensors.columns import Columns

SHARED = ("kl_mean", "entropy", *AGREEMENT)
"""Metrics of the step rather than of a model: logged without the model's name."""


class Updates:
    """One training step: each call of `run` trains every node on minibatches of its own size."""

    def __init__(self, learner: Learner, text: "PretrainingText | None" = None) -> None:
        """`text` is mixed into each update of the policy."""
        self._graph, self._models, self._ctx = learner.graph, learner.models, learner.op_ctx
        self._text = text
        self._metrics: dict[str, tuple[float, int]] = {}  # sum or maximum over updates, and their number
        self._stopped: set[str] = set()  # nodes
        self._count = 0

    def run(self, columns: Columns, *, whole: bool = False, first: int = 0, last: int | None = None) -> None:
        """Trains on all sequences, in the epochs of each node from `first` on and before `last`; `whole`: once, as one
        minibatch."""
        step = self._ctx.step
        seed = self._ctx.spec.seed * 1_000_003 + step
        for node in self._graph.train:
            if step < node.from_step:
                continue
            with RECORDER.measure(node.name):
                own = trained_rows(node, columns)
                passes = (node.epochs if last is None else min(last, node.epochs)) - first
                whole_rows = iter([torch.arange(len(own))])
                for rows in whole_rows if whole else _chosen(node, own, len(columns), passes, seed):
                    if len(rows):  # no prompt of an update may have a pair
                        self._update(node, own.select(rows))

    def metrics(self) -> dict[str, float]:
        """Means (maxima, of names that end in MAXIMUM) over the updates, each model's under its name where there are
        several."""
        means = {
            key: value if key.endswith(MAXIMUM) else value / count
            for key, (value, count) in self._metrics.items()
        }
        first = self._graph.train[0]
        if (loss := f"{_prefix(self._graph, first)}loss") in means:
            means["loss"] = means[loss]
        rate = learning_rate_of(self._ctx.spec, first.model == CRITIC, self._ctx.step, first.from_step)
        return {**means, "learning_rate": rate}

    def _update(self, node: Train, part: Columns) -> None:
        spec, bound = self._ctx.spec, node.stop_ratio
        if node.name in self._stopped:
            return
        faults.point(f"update:{self._ctx.step}.{self._count}")
        self._count += 1
        loss = loss_fn(node.loss, spec)(part, self._ctx)
        rate = learning_rate_of(spec, node.model == CRITIC, self._ctx.step, node.from_step)
        model, sequences = self._models[node.model], part.sequences
        if node.loss in OF_TOKENS and self._text is None:
            sequences = model.divided(sequences)
        if self._text is not None and node.model == POLICY:
            sequences, loss = mixed(sequences, loss, self._text.take(), self._text.coefficient)
        group = self._graph.group(node)
        metrics = model.update(sequences, train_output_fn(node, spec, part), loss, rate, group)
        for name, value in metrics.items():
            key = name if name in SHARED else _prefix(self._graph, node) + name
            if key in self._metrics and (key in AGREEMENT or (node.pairs and key == "kl_mean")):
                continue  # of the policy before the step, which has moved since
            before, count = self._metrics.get(key, (value, 0))
            joined = max(before, value) if key.endswith(MAXIMUM) else before + value
            self._metrics[key] = (joined if count else value, count + 1)
        if bound is not None and "ratio_mean" in metrics and not 1 / bound <= metrics["ratio_mean"] <= bound:
            self._stopped.add(node.name)


def held_out_losses(learner: Learner, columns: Columns) -> dict[str, float]:
    """Loss and statistics of every training node over all sequences, under the names of `Updates.metrics`, without an
    update. A collective."""
    graph, ctx, losses = learner.graph, learner.op_ctx, dict[str, float]()
    for node in graph.train:
        own = trained_rows(node, columns)
        loss = loss_fn(node.loss, ctx.spec)(own, ctx)
        read, model = train_output_fn(node, ctx.spec, own), learner.models[node.model]
        measured = model.measure(own.sequences, read, loss, graph.group(node))
        losses |= {_prefix(graph, node) + name: value for name, value in measured.items()}
    return {**losses, "loss": losses[f"{_prefix(graph, graph.train[0])}loss"]}


def trained_rows(node: Train, columns: Columns) -> Columns:
    """The rows that a node trains on: all, those whose column `only` is not 0, or those of pairs, each one's better
    response before the worse."""
    if node.pairs is not None:
        return columns.select(paired_rows(columns[node.pairs], columns["position"]))
    return columns if node.only is None else columns.select(columns[node.only].nonzero()[:, 0])


def _chosen(node: Train, own: Columns, sampled: int, epochs: int, seed: int) -> Iterator[Tensor]:
    """Rows of each minibatch; `sampled`: all rows, of which those of pairs are a part."""
    size = node.minibatch_size or sampled
    if node.pairs is not None:
        pairs = shuffled_parts(len(own) // 2, minibatch_count(sampled, size), epochs, seed)
        return ((2 * part[:, None] + torch.arange(2)).flatten() for part in pairs)
    if node.balance_tokens:
        return balanced_minibatches(own.lengths, size, epochs, seed)
    return minibatches(len(own), size, epochs, seed)


def _prefix(graph: Graph, node: Train) -> str:
    return f"{node.model.name}_" if len(graph.trained) > 1 else ""


class PretrainingText:
    """Sequences for the language-modelling loss, in an order of their own."""

    def __init__(self, rows: Sequence[Row], ctx: TrainerContext) -> None:
        assert ctx.spec.pretraining is not None
        self._rows, self._tokenizer, self._data = rows, ctx.tokenizer, ctx.spec.data
        self._count, self.coefficient = ctx.spec.pretraining.rows_per_update, ctx.spec.pretraining.coefficient
        self._stream = stream(rows, ctx.spec.seed)

    @property
    def position(self) -> int:
        """Rows taken so far: part of a snapshot."""
        return self._stream.position

    @position.setter
    def position(self, value: int) -> None:
        self._stream.position = value

    def take(self) -> Columns:
        """The sequences of the next update."""
        rows = [self._rows[row] for _, row in self._stream.take(self._count)]
        return given_columns("responses", rows, self._tokenizer, self._data)[0]


def learning_rate_of(spec: Spec, critic: bool, step: int, from_step: int = 0) -> float:
    """The learning rate of the policy, or of the critic, in a training step: 0 before `from_step`, where its schedule
    begins."""
    if step < from_step:
        return 0.0
    optimizer = spec.optimizer
    return learning_rate(
        step - from_step,
        base=spec.learning_rate("critic" if critic else "policy"),
        warmup_steps=optimizer.warmup_steps,
        total_steps=spec.steps - from_step,
        schedule=optimizer.schedule,
        floor=optimizer.floor,
        decay_steps=optimizer.decay_steps,
    )


def minibatches(count: int, size: int, epochs: int, seed: int) -> Iterator[Tensor]:
    """Rows of each minibatch, `epochs` times over all rows, shuffled by `seed`; their numbers differ by one at most."""
    return shuffled_parts(count, minibatch_count(count, size), epochs, seed)


def shuffled_parts(count: int, parts: int, epochs: int, seed: int) -> Iterator[Tensor]:
    """0 to `count` - 1 in `parts` parts, `epochs` times, shuffled by `seed`; their numbers differ by one at most."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(count, generator=generator).tensor_split(parts)


def balanced_minibatches(tokens: Tensor, size: int, epochs: int, seed: int) -> Iterator[Tensor]:
    """As many minibatches as `minibatches` makes, whose rows differ by one at most and whose tokens by little.

    `tokens` int64 [N]: of each row. Longest-processing-time scheduling with a bound on rows (Graham 1969, "Bounds on
    multiprocessing timing anomalies"): rows in layers of one for each minibatch, long ones first; within a layer the
    longest goes to the minibatch with the fewest tokens so far. Lengths are blurred by a random factor of 0.5 to 1.5
    when layers are cut, without which every epoch would deal the same sets; so any two rows meet as often as by chance.
    """
    generator = torch.Generator().manual_seed(seed)
    count = minibatch_count(len(tokens), size)
    for _ in range(epochs):
        blurred = tokens * (0.5 + torch.rand(len(tokens), generator=generator))
        owner, sums = torch.empty_like(tokens), torch.zeros(count, dtype=torch.int64)
        for layer in blurred.argsort(descending=True, stable=True).split(count):
            longest_first = layer[tokens[layer].argsort(descending=True, stable=True)]
            emptiest = sums.argsort(stable=True)[: len(layer)]
            owner[longest_first] = emptiest
            sums[emptiest] += tokens[longest_first]
        dealt = owner.argsort(stable=True).split(owner.bincount(minlength=count).tolist())
        for i in torch.randperm(count, generator=generator).tolist():
            yield dealt[i]

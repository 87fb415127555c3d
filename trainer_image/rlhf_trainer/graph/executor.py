"""Executor: runs the nodes between an algorithm's source and its training, in an order that rank 0 decides.

Every rank runs the same loop. In each turn rank 0 picks what comes next, by what is there, and tells the others: run a
node, take the columns that a role has answered with, or stop. So the order of collectives is rank 0's alone. Calls of
other roles start on rank 0 as soon as their columns exist and go on while the ranks compute.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlhf_api.contract.timeline import WAIT
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import REWARD, SEQUENCES, Compute, Infer, Node, Score

from ..dispatch.roster import Stopped
from ..ops import ROW_OUTPUTS, compute_fn, output_fn
from ..process.timeline import RECORDER
from ..ranks.ranks import Message, Ranks
from ..tensors.columns import Columns
from .learner import Learner

REPLAYED = ("logprobs",)
"""Column of the node whose routing the updates replay."""
RemoteCall = Callable[..., Tensor | Mapping[str, Tensor]]
"""(sequences, their dataset rows, the other columns that its node reads by their names) -> the column that a role
answers with; of a node that writes several, all by their names."""


class Executor:
    """Runs the preparing nodes of a graph. Its method is a collective."""

    def __init__(
        self,
        ranks: Ranks,
        learner: Learner,
        remote: Mapping[str, RemoteCall],
    ) -> None:
        """`remote`: calls of other roles by the names of their nodes, on rank 0 alone.

        Raises InvalidJob where the graph names an operation that does not exist.
        """
        graph, ctx = learner.graph, learner.op_ctx
        self._ranks, self._learner, self._graph, self._remote = ranks, learner, graph, remote
        self._functions = {
            n.name: compute_fn(n.function, ctx.spec) for n in graph.prepare if isinstance(n, Compute)
        }
        self._outputs = {n.name: output_fn(n.output, ctx.spec) for n in graph.prepare if isinstance(n, Infer)}
        self._replays = ctx.spec.experts.replay == "policy"
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(remote)), thread_name_prefix="remote")

    def run(
        self,
        columns: Columns,
        rows: Sequence[Mapping[str, Any]] = (),
        *,
        until: Node | None = None,
        without: Sequence[str] = (),
    ) -> Columns:
        """The columns with all that the nodes write; a node whose columns exist already is not run.

        `rows`: the dataset row of each sequence, needed on rank 0 alone. With `until`, only that node and those that
        it depends on; nodes that read the columns `without`, or what is made of them, are left for later. Raises
        Stopped, on every rank, where the run is to end while a role is waited for.
        """
        late = self._that_follow(without)
        needed = [node for node in self._needed_nodes(until) if node not in late]
        todo = [node for node in needed if not self._has_run(node, columns)]
        calls: dict[Future[Tensor | Mapping[str, Tensor]], Node] = {}

        def next_turn() -> Message:
            try:
                return choose()
            except Stopped:
                return {}, {"node": None, "stopped": True}

        def choose() -> Message:
            for node in todo:
                if self._graph.remote(node) and node not in calls.values() and _ready(node, columns):
                    ended = replace(columns.sequences, finished=columns.rows.get("finished"))
                    others = {name: columns[name] for name in node.reads if name != SEQUENCES}
                    calls[self._pool.submit(self._remote[node.name], ended, rows, **others)] = node
            for node in todo:
                if not self._graph.remote(node) and _ready(node, columns):
                    return {}, {"node": node.name}
            if not calls:
                return {}, {"node": None}
            done, _ = wait(calls, return_when=FIRST_COMPLETED)
            call = next(call for call in calls if call in done)
            return _by_name(calls[call], call.result()), {"node": calls.pop(call).name}

        by_name = {node.name: node for node in todo}
        while True:
            began = RECORDER.clock()
            arrays, header = self._ranks.share(next_turn)
            if header.get("stopped"):
                raise Stopped("stopped while other roles worked on the step's responses")
            if header["node"] is None:
                return columns
            node = by_name[header["node"]]
            if arrays:
                RECORDER.record(f"{WAIT}{node.name}", began)
                columns = _with(columns, node, arrays)
            else:
                with RECORDER.measure(node.name):
                    columns = self._run(node, columns)
            todo.remove(node)

    def _has_run(self, node: Node, columns: Columns) -> bool:
        """True if the columns of a node exist, and the routing that goes with them: no snapshot has that."""
        there = all(name in columns for name in node.writes)
        return there and not (self._replays and node.writes == REPLAYED and columns.sequences.routing is None)

    def _weights(self, node: Infer) -> AbstractContextManager[None]:
        """Context in which the model has the weights that the node infers with."""
        if node.average is not None:
            return self._learner.averages[node.model].swapped()
        return self._learner.models[node.model].adapter_off() if node.base else nullcontext()

    def _needed_nodes(self, until: Node | None) -> list[Node]:
        """All preparing nodes, or `until` and the nodes that it depends on."""
        if until is None:
            return list(self._graph.prepare)
        nodes, columns = [until], set(until.reads)
        for node in reversed(self._graph.prepare):
            if node is not until and columns & set(node.writes):
                nodes.insert(0, node)
                columns |= set(node.reads)
        return nodes

    def _that_follow(self, columns: Sequence[str]) -> list[Node]:
        """Preparing nodes that depend on any of the columns."""
        nodes, late = list[Node](), set(columns)
        for node in self._graph.prepare:
            if late & set(node.reads):
                nodes.append(node)
                late |= set(node.writes)
        return nodes

    def _run(self, node: Node, columns: Columns) -> Columns:
        if isinstance(node, Infer):
            sizes = torch.ones_like(columns.lengths) if node.output in ROW_OUTPUTS else columns.lengths
            model, sequences = self._learner.models[node.model], columns.sequences
            if node.writes != REPLAYED:  # not of the policy before the step, which alone chose them
                sequences = replace(sequences, routing=None)
            if self._replays and node.writes == REPLAYED:
                output, routing = model.infer_routed(sequences, self._outputs[node.name], sizes)
                columns = replace(columns, sequences=replace(sequences, routing=routing))
                return _with(columns, node, _by_name(node, output))
            with self._weights(node):
                output = model.infer(sequences, self._outputs[node.name], sizes)
            return _with(columns, node, _by_name(node, output))
        made = self._functions[node.name](columns, self._learner.op_ctx)
        if missing := [name for name in node.writes if name not in made]:
            message = f"node {node.name!r} wrote no column {', '.join(missing)}, which its graph declares"
            raise InvalidJob([Problem("spec.algorithm", message)])
        return made


def _ready(node: Node, columns: Columns) -> bool:
    return all(name == SEQUENCES or name in columns for name in node.reads)


def _by_name(node: Node, answer: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {node.writes[0]: answer} if isinstance(answer, Tensor) else dict(answer)


def _with(columns: Columns, node: Node, answer: Mapping[str, Tensor]) -> Columns:
    """Adds the results of an inference or a role: one number per sequence, or per response token."""
    for name, column in answer.items():
        if isinstance(node, Infer):
            of_rows = node.output in ROW_OUTPUTS
        else:
            of_rows = not (isinstance(node, Score) and node.per_token) or name.startswith(REWARD)
        columns = columns.with_rows(**{name: column}) if of_rows else columns.with_tokens(**{name: column})
    return columns

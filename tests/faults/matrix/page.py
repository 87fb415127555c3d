"""benchmarks/results/faults.md, from the results of the matrix."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.matrix.cells import (
    BY_ROLE,
    EPISODES,
    GPU,
    HANG_SECONDS,
    MOMENTS,
    MOMENTS_IN_TURNS,
    MOMENTS_OF_EPISODES,
    OUTAGE_SECONDS,
    PAUSE_SECONDS,
    PODS,
    STALENESS,
    TURNS,
    Cell,
    cells,
)
from tests.faults.matrix.inject import SLOW_SECONDS
from tests.faults.matrix.kills import SPOT_SECONDS
from tests.faults.matrix.nodes import GRACE_SECONDS, TOLERATED_SECONDS

PAGE = Path(__file__).parents[3] / "benchmarks" / "results" / "faults.md"
Row = Mapping[str, Any]
ON_PODS_ALONE = ("status s", "steps")
COLUMNS = ("victim", "when", "what happened", "times", "p50 s", "p95 s", "lost", "twice", "tokens again")
INTRO = """# The fault matrix

This page shows what follows from faults on real processes, each at a named point of a training step. The jobs run one
after another on one machine: `rlhf run` with two trainer ranks, two vLLM servers, a reward, a reference, and
checkpoints of every step in an S3 server (SeaweedFS). The process that reaches the point waits there until the fault
has been injected, so nothing depends on luck (`tests/faults/matrix`). The next fault comes when every role is ready
again. A process that hangs is [noticed](../../docs/concepts/detection.md) and ended, a trainer after {hang} s here.

```console
$ make faults
```

{measured}
There were several sittings, each with the code of its day, some on a machine with up to 26 such jobs beside each other.
The model is tiny. So the times are those of noticing the fault, of starting processes and of loading. Loading takes
most of them on so few cores.

- **s**: seconds from the fault to the end of the next training step; ahead of training, of the one after it, since the
  next step already has some of its responses. p95 of a few times is the longest.
- **lost**: prompts that the newest checkpoint should have trained on and has not. **twice**: prompts that two of its
  episodes have. Both are read from the store, not asked of the trainer.
- **tokens again**: tokens that the generators sampled and nobody trained on, a mean, by vLLM's own counters. The
  token by which each server proves new weights is among them. Ahead of training, requests that still run at the end
  of a cell count too, so the number can be a few hundred off either way.
- SIGSTOP lasts {pause:g} s. An outage or a full disk of the store lasts {outage:g} s.
- Connections are cut by the kernel, which resets all connections of the process.
- Out of memory is a limit of the address space below what the process already has.
"""
ON_PODS = """
The same job runs as pods of a real Kubernetes 1.20 with two nodes on this machine, each node in namespaces of its own
(`tests/cluster`): one trainer, two generators, a reward, a reference, and two operators of the chart. It writes
checkpoints of every step to the volume that all pods share. As root, `python -m tests.faults.matrix --only "on pods"`.

- **SIGKILL**, **SIGTERM** go to the first process of the pod's container. **Eviction** goes through the Eviction API.
- **Node lost**: the victim's pod is alone on the second node. That node falls silent with all that is on it, as without
  power, and comes back after the job has gone on. Kubernetes notices after 40 s and deletes the pod after {tolerated} s
  more, which the job's `tolerations` say. A trainer's pod has a grace of {grace} s, by its template. The operator gives
  the pod up 30 s after that. With the defaults, 300 s each, a lost node costs a trainer {more} s more, another role
  {less} s. A reward or reference that is lost while it scores has answered the step; one that is lost while generators
  generate has not been asked yet, so that step waits for its successor.
- **Drain**: `kubectl drain`, then `uncordon`. When every node is drained, there is nowhere to go until `uncordon`.
- **Connections cut**: for {pause:g} s, longer than a lease, all that the leading operator sends to the API server is
  lost; with the API server as victim, all that any operator sends. The standby may see the lease renewed only after
  that, and waits 10 s more. etcd and the API server, when killed, are started again at once; the API server took 5 to
  10 s to start.
- **All at once**: the API server is stopped, the leading operator is killed, and a generator's node is lost.
- **status s**: seconds from the fault until the job's status shows a step after it. **steps**: the steps made by then;
  these need neither operator nor API server. In the end the status is right, and pods that *what happened* does not
  name are the same as before.
- Where the operator is the victim, it is the leading one; training does not need it. For a trainer, **s** lasts until
  the first step of its successor: a trainer that is told to end first finishes its step and saves a checkpoint.
"""
IN_TURNS = """
With `placement: shared`, two trainer ranks and two vLLM servers on the same processors. While the trainer computes both
servers **sleep**; **waking**, they make room for the next weights, and none serves before it has them. vLLM frees
nothing on a CPU, so this shows the order of things and not the memory.
"""
OF_EPISODES = """
Responses are episodes of three turns. While it is **replying** to a turn, the process that runs the environment is
killed, or stopped for longer than a call may take (`environment.turnSeconds`, 5 s). The trainer starts another one, in
which the episodes are played again from their record: no role starts again, and no turn is sampled again. The tokens
are those by which servers prove the weights of each step, of which many are made before a stop is over.
"""
OF_ROLE = """
The same episodes, which a role of two processes plays, with a worker in each. Victims are one of these processes, which
is started again, and the worker in it, which it starts again itself. The other process goes on. A stop of {pause:g} s
is about as long as the trainer waits for a sign of life.
"""
ON_GPU = """
At staleness 2, in bfloat16: one trainer rank, two vLLM engines and the reference on one NVIDIA H100 (80 GB) with 16
cores, vLLM 0.25.1, torch 2.11.0+cu130; 2026-11-24, four such jobs at the same time, each with other victims. A step
takes 0.2 s there. A process that starts takes most of its time for loading and for CUDA. At the end no memory of the
GPU was in use.
"""
SLOW = """
## One generator killed, the other slowed

`FAULTS='--kills 10 --seed 6 --slow' make faults`. The job and the columns are the same. One generator runs for a
fifth of the time from the first step to the end: its processes are stopped for {stopped:g} s and run for {running:g} s
in turns. The other is killed {kills} times (seeds {seeds}), after {made} of which the job went on.

"""
SPOT = """
## Generators lost like spot instances

`FAULTS='--spot 8' make faults`. Of three generators, at staleness 2, one is killed every {every:g} s, by SIGKILL to its
engine, even if others are still starting. This takes turns with undisturbed spells of the same length, in one job. All
of a job shares {cores} cores: processes that start slow down those that work, which they would not on machines of their
own.

"""
_SPELLS = ("", "seconds", "kills", "samples", "samples/s", "of each turn", "lost", "twice", "too old", "load")
KILLED = """
## Killed at random

`FAULTS='--kills 10 --seed 1' make faults` runs one sitting.

There were {kills} kills of the trainer and the generators of a job that generates ahead (staleness 2). The job went on
after {made} of these. The seeds {seeds} draw who is killed, and when: half at a named point as above, half at any time.
The next kill comes as soon as a victim runs, even if others are still starting. Each generator has one request at a
time, so that snapshots hold responses that are only begun. After each kill the test takes every response of the newest
snapshot. It looks for it, token by token with its version, in what was trained on since or in the snapshot that is
newest then.

- **begun**: responses of which these snapshots had a part. **gone**: responses of these snapshots, begun or whole, that
  were not found again unchanged. **too old**: tokens that were trained on beyond the bound.
"""
_LEDGER = ("lost", "twice", "old")
_COUNTED = {"lost": "lost", "twice": "twice", "old": "too old", "begun": "begun", "gone": "gone"}
"""Numbers of a kill that are summed up, with their columns."""


def page(rows: Sequence[Row], kills: Sequence[Row] = (), spells: Sequence[Row] = ()) -> str:
    """The whole page; a cell without a result says so."""
    by_cell: defaultdict[Cell, list[Row]] = defaultdict(list)
    for row in rows:
        by_cell[Cell(row["mode"], row["victim"], row["fault"], row["moment"])].append(row)
    parts = [
        INTRO.format(measured=_measured(rows), pause=PAUSE_SECONDS, outage=OUTAGE_SECONDS, hang=HANG_SECONDS)
    ]
    for mode in STALENESS:
        of_mode = list(cells(mode))
        run = [cell for cell in of_mode if cell in by_cell]
        parts.append(f"\n## {mode[0].upper()}{mode[1:]}\n")
        if mode == GPU:
            parts.append(ON_GPU)
        if mode == TURNS:
            parts.append(IN_TURNS)
        if mode == EPISODES:
            parts.append(OF_EPISODES)
        if mode == BY_ROLE[0]:
            parts.append(OF_ROLE.format(pause=PAUSE_SECONDS))
        if mode == PODS:
            less = 300 - TOLERATED_SECONDS
            parts.append(
                ON_PODS.format(
                    tolerated=TOLERATED_SECONDS,
                    grace=GRACE_SECONDS,
                    less=less,
                    more=less + 300 - GRACE_SECONDS,
                    pause=PAUSE_SECONDS,
                )
            )
        parts.append(f"\n{len(run)} of {len(of_mode)} cells were run.\n")
        for fault in dict.fromkeys(cell.fault for cell in of_mode):
            parts.append(_table(fault, [cell for cell in of_mode if cell.fault == fault], by_cell))
    for head, slow in ((KILLED, False), (SLOW, True)):
        if found_kills := [row for row in kills if row.get("slow", False) is slow]:
            parts.append(_killed(head, found_kills))
    return "".join(parts + [_lost(spells)] * bool(spells))


def _lost(spells: Sequence[Row]) -> str:
    """The section about spot-like loss, a line each for the turns with and without."""
    lines, rates = [_line(_SPELLS), _line(["---"] * len(_SPELLS))], []
    for name, killed in (("undisturbed", False), ("one killed every minute", True)):
        own = [row for row in spells if row["spot"] is killed]
        total = {key: sum(row[key] for row in own) for key in ("seconds", "kills", "samples", *_LEDGER)}
        rates.append(total["samples"] / total["seconds"] if own else math.nan)
        loads = [f"{row['load']:.0f}" for row in own]
        lines.append(
            _line(
                [
                    *(name, f"{total['seconds']:.0f}", str(total["kills"]), str(total["samples"])),
                    *(f"{rates[-1]:.2f}", ", ".join(f"{row['samples'] / row['seconds']:.2f}" for row in own)),
                    *(*(str(total[key]) for key in _LEDGER), ", ".join(loads)),
                ]
            )
        )
    end = f"""With losses the job made {rates[1] / rates[0]:.0%} of the undisturbed samples/s. Compare that with
how far turns of one kind differ. A sample is a prompt with its response. **load** is the machine's load at the end of
each turn, over one minute, from everything that ran on it."""
    return (
        "\n".join([SPOT.format(every=SPOT_SECONDS, cores=_cores(spells)).rstrip("\n"), "", *lines, "", end])
        + "\n"
    )


def _killed(head: str, kills: Sequence[Row]) -> str:
    """A section about kills at random, one line a victim."""
    done = [row for row in kills if "seconds" in row]
    seeds = ", ".join(map(str, sorted({row["seed"] for row in kills})))
    columns = ("victim", "kills", "at any time", "no step", "p50 s", "longest s", *_COUNTED.values())
    lines = [_line(columns), _line(["---"] * len(columns))]
    for victim in sorted({row["victim"] for row in kills}):
        own = [row for row in kills if row["victim"] == victim]
        ended = [row for row in own if "seconds" in row]
        seconds = sorted(row["seconds"] for row in ended) or [math.nan]
        lines.append(
            _line(
                [
                    *(victim, str(len(own)), str(sum(row["after"] is not None for row in own))),
                    str(len(own) - len(ended)),
                    *(f"{s:.1f}" for s in (seconds[math.ceil(len(seconds) / 2) - 1], seconds[-1])),
                    *(str(sum(row[name] for row in ended)) for name in _COUNTED),
                ]
            )
        )
    stopped, running = SLOW_SECONDS
    head = head.format(kills=len(kills), made=len(done), seeds=seeds, stopped=stopped, running=running)
    return "\n".join([head.rstrip("\n"), "", *lines]) + "\n"


def _table(fault: str, of_fault: Sequence[Cell], by_cell: Mapping[Cell, Sequence[Row]]) -> str:
    columns = (*COLUMNS, *(ON_PODS_ALONE if of_fault[0].mode == PODS else ()))
    lines = [_line(columns), _line(["---"] * len(columns))]
    of_episodes = dict.fromkeys((EPISODES, *BY_ROLE), MOMENTS_OF_EPISODES)
    order = list({TURNS: MOMENTS_IN_TURNS, **of_episodes}.get(of_fault[0].mode, MOMENTS))
    ran = sorted((cell for cell in of_fault if cell in by_cell), key=lambda cell: order.index(cell.moment))
    lines += [_line(_row(cell, by_cell[cell])) for cell in ran]
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for cell in of_fault:
        if cell not in by_cell:
            missing[cell.victim].append(cell.moment)
    missing_text = "; ".join(
        victim if len(moments) == len(order) else f"{victim} {', '.join(moments)}"
        for victim, moments in missing.items()
    )
    parts = [
        f"### {fault}",
        "\n".join(lines) if ran else "",
        f"Not run: {missing_text}." if missing_text else "",
    ]
    return "\n" + "\n\n".join(filter(None, parts)) + "\n"


def _row(cell: Cell, rows: Sequence[Row]) -> list[str]:
    done = [row for row in rows if "seconds" in row]
    counted = Counter(map(happened, rows))
    words = "; ".join(f"{text} ({n})" if len(counted) > 1 else text for text, n in counted.items())
    if not done:
        return [cell.victim, cell.moment, words, str(len(rows)), *[""] * (5 + len(_of_status(cell, [])))]
    seconds = sorted(row["seconds"] for row in done)
    again = sum(max(0, row["again"]) for row in done) / len(done)
    return [
        *(cell.victim, cell.moment, words, str(len(rows))),
        *(f"{seconds[math.ceil(share * len(seconds)) - 1]:.1f}" for share in (0.5, 0.95)),
        *(str(sum(row[name] for row in done)) for name in ("lost", "twice")),
        f"{again:.0f}",
        *_of_status(cell, [row for row in done if row.get("told")]),
    ]


def _of_status(cell: Cell, rows: Sequence[Row]) -> list[str]:
    """Medians of ON_PODS_ALONE, empty where no row has them."""
    if cell.mode != PODS:
        return []
    if not rows:
        return ["", ""]
    middle = sorted(rows, key=lambda row: row["told"])[(len(rows) - 1) // 2]
    return [f"{middle['told']:.1f}", str(middle["steps"])]


def happened(row: Row) -> str:
    """The roles that were started again, and how the job ended where it did."""
    if "failed" in row:
        return f"**no step**: {row['failed']}"[:200].replace("|", " ")
    names = _names(event for event in row["events"] if event.endswith(" started again"))
    ended = f"the job ended ({row['end']}) and was resumed" if row["end"] else ""
    again = f"{names} started again" if names else ""
    return ", ".join(filter(None, [ended, again])) or "went on"


def _names(events: Iterable[str]) -> str:
    return ", ".join(sorted({re.sub(r"-\d+$", "", event.split()[0]) for event in events}))


def _measured(rows: Iterable[Row]) -> str:
    """Dates on which the cells of processes were run, and the cores of each job."""
    own = [row for row in rows if row["mode"] not in (GPU, PODS)]
    dates = sorted({row["date"] for row in own}) or ["no day"]
    when = f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}"
    return f"Measured {when} (x86_64, no GPU), each job on {_cores(own)} cores."


def _cores(rows: Iterable[Row]) -> str:
    return " or ".join(map(str, sorted({row["cores"] for row in rows})))


def _line(words: Iterable[str]) -> str:
    return f"| {' | '.join(words)} |"

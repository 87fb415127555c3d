"""Time to a held-out score: GRPO of one chat model on three tasks of reasoning-gym, here and in TRL with vLLM.

    .venv/bin/python benchmarks/jobs/race.py --model runs/smollm2 --rows runs/race --out runs/race/measured

Needs `trl==1.16` and `datasets` beside vLLM; the rows are race_tasks.py's, the model is `examples/chat/model.py`'s. The
runs are one after the other, each alone on the GPU: the same prompts, lengths, rate, updates and scores. Both sides
have float32 master weights and AdamW, and sample the held-out answers by their own evaluation.

Seconds are those of training: they begin at the end of the first step, which compiles kernels, and those of
evaluations are left out, on TRL's side with the copy of the weights to vLLM that an evaluation makes. Prints a line for
each evaluation, then the seconds to each of `--scores`, between two evaluations on the line through them. `--out` gets
the lines as curves.jsonl and a picture of them. What is there already is not run again.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from race_sides import Point, lines, our_points
from race_trl import trl_points, trl_process


def main() -> None:
    options = parse()
    if options.only_trl:
        trl_points(options, options.seeds[0], options.only_trl)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    curves, began, longest = options.out / "curves.jsonl", time.monotonic(), 0.0
    done = {(point.side, point.seed) for point in read(curves)}
    for seed, side in itertools.product(options.seeds, options.sides):
        if (side, seed) in done:
            continue
        started = time.monotonic()
        if started - began + longest > options.limit:
            print(f"no time is left for {side} with seed {seed}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            points = our_points(options, seed, folder) if side == "ours" else trl_process(seed, folder)
        whole = time.monotonic() - started
        longest = max(longest, whole)
        with curves.open("a") as file:
            for point in points:
                line = json.dumps(point._asdict())
                print(line, flush=True)
                file.write(line + "\n")
        print(f"{side}, seed {seed}: {whole:.0f} s with start and evaluations", file=sys.stderr, flush=True)
    points = read(curves)
    for line in summarize(points, options.scores):
        print(line, flush=True)
    draw(points, options.out / "curves.png")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True, help="the folder of race_tasks.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--sides", nargs="+", choices=("ours", "TRL"), default=["ours", "TRL"])
    parser.add_argument("--scores", type=float, nargs="+", default=[0.2, 0.25, 0.3, 0.35])
    parser.add_argument("--limit", type=float, default=540, help="seconds, beyond which no run is begun")
    parser.add_argument("--rate", type=float, default=5e-6, help="learning rate, constant")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=2, help="steps between evaluations")
    parser.add_argument("--samples", type=int, default=4, help="answers to a held-out prompt")
    parser.add_argument("--responses", type=int, default=256, help="of a step, which is one update")
    parser.add_argument("--group", type=int, default=8, help="responses to a prompt")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--longest", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16", help="in which both compute")
    parser.add_argument("--staleness", type=int, default=0, help="ours; above 0 evaluations count as well")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="more of our manifest")
    parser.add_argument("--micro", type=int, default=64, help="sequences that TRL forwards at once")
    parser.add_argument(
        "--part", type=float, default=0.3, help="of the GPU that TRL's vLLM fills; 0: no vLLM"
    )
    parser.add_argument("--liger", action="store_true", help="TRL with Liger's kernels and loss")
    parser.add_argument("--keep", type=Path, help="a folder for our logs")
    parser.add_argument("--only-trl", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def read(curves: Path) -> list[Point]:
    return [Point(**line) for line in lines(curves)] if curves.exists() else []


def by_run(points: Sequence[Point]) -> Iterator[tuple[str, int, list[Point]]]:
    """The points of each side and seed, in the order of their steps."""
    ordered = sorted(points, key=lambda point: (point.side, point.seed, point.step))
    for (side, seed), run in itertools.groupby(ordered, key=lambda point: (point.side, point.seed)):
        yield side, seed, list(run)


def seconds_to(score: float, run: Sequence[Point]) -> float | None:
    """Training seconds until the held-out score is `score` for the first time; None if it never is."""
    for a, b in itertools.pairwise(run):
        if a.score < score <= b.score:
            return a.seconds + (b.seconds - a.seconds) * (score - a.score) / (b.score - a.score)
    return None


def summarize(points: Sequence[Point], scores: Sequence[float]) -> Iterator[str]:
    """A line of JSON for each score: seconds by side and seed, and theirs over ours where all runs reach it."""
    for score in scores:
        seconds: dict[str, list[float | None]] = {}
        for side, _, run in by_run(points):
            seconds.setdefault(side, []).append(seconds_to(score, run))
        reached = {side: [each for each in all_ if each is not None] for side, all_ in seconds.items()}
        line = {"score": score, "seconds": seconds}
        if len(reached) > 1 and all(len(reached[side]) == len(seconds[side]) for side in seconds):
            mean = {side: statistics.fmean(each) for side, each in reached.items()}
            line |= {"mean": mean, "ratio": mean["TRL"] / mean["ours"]}
        yield json.dumps(line)


def draw(points: Sequence[Point], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    colours = {"ours": "tab:blue", "TRL": "tab:orange"}
    for side, seed, run in by_run(points):
        x, y = [point.seconds for point in run], [point.score for point in run]
        axes.plot(
            x, y, ".-", color=colours[side], label=side if seed == min(p.seed for p in points) else None
        )
    axes.set(
        xlabel="seconds of training, on one GPU", ylabel="held-out answers that are right", ylim=(0, None)
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()

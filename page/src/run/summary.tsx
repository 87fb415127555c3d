// What a reader wants to know of a run before its figures: how far it is and what it takes.
import type { Run, RunDetail, Usage } from "../api/types.ts";
import { formatNumber, formatSeconds, formatTime, NONE } from "../format.ts";
import { Fact } from "../parts.tsx";
import { formatProgress } from "../runs/filter.ts";

export function Summary({ run, detail }: { run: Run; detail: RunDetail | null }) {
  return (
    <dl class="facts">
      <Fact name="Algorithm">{run.algorithm}</Fact>
      <Fact name="Step">{formatProgress(run)}</Fact>
      <Fact name="Reward">{formatNumber(run.reward)}</Fact>
      <Fact name="Held-out">{formatNumber(run.heldOut)}</Fact>
      <Fact name="Time">{formatSeconds(run.seconds)}</Fact>
      <Fact name="GPUs">{run.gpus === null ? NONE : formatNumber(run.gpus)}</Fact>
      <Fact name="Started">{formatTime(run.started)}</Fact>
      {detail?.estimatedEnd && <Fact name="Estimated end">{formatTime(detail.estimatedEnd)}</Fact>}
      {detail?.usage && listUsage(detail.usage).map(([name, text]) => <Fact key={name} name={name}>{text}</Fact>)}
    </dl>
  );
}

/** What is known of a run's use of time, money and memory, as names and texts. */
export function listUsage(usage: Usage): [string, string][] {
  const { gpuSeconds, cost, costPerHour, stepSeconds, memoryPeak } = usage;
  const facts: [string, string][] = [];
  if (stepSeconds !== null) facts.push(["Median step", formatSeconds(stepSeconds)]);
  if (gpuSeconds !== null) facts.push(["GPU-hours", formatNumber(gpuSeconds / 3600)]);
  if (cost !== null) facts.push(["Cost", formatNumber(cost) + (costPerHour === null ? "" : `, ${formatNumber(costPerHour)} an hour`)]);
  if (memoryPeak !== null) facts.push(["Peak of a trainer's GPU", `${formatNumber(memoryPeak)} GB`]);
  return facts;
}

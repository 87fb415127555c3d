// One run: alarms before figures, the eight figures to see first, all others by search, then what the run consists of.
import { usePolled } from "../api/polled.ts";
import { useRun } from "../api/runs.ts";
import type { Alarm, Mark, Metric, RunDetail } from "../api/types.ts";
import { Phase, Problem } from "../parts.tsx";
import type { Route } from "../routing.ts";
import { Alarms } from "./alarms.tsx";
import { Conditions, Hidden } from "./conditions.tsx";
import { Figures } from "./figures.tsx";
import { Generators } from "./generators.tsx";
import { Ledger } from "./ledger.tsx";
import { Logs } from "./logs.tsx";
import { Marks } from "./marks.tsx";
import { Predicted } from "./predicted.tsx";
import { List, Roles } from "./roles.tsx";
import { Snapshots } from "./snapshots.tsx";
import { Summary } from "./summary.tsx";

export function RunView({ id, route }: { id: string; route: Route }) {
  const path = `/runs/${encodeURIComponent(id)}`;
  const { data: run, error } = usePolled<RunDetail>(path);
  const { data: metrics } = usePolled<{ names: Metric[] }>(`${path}/metrics`);
  const { data: marks } = usePolled<{ marks: Mark[] }>(`${path}/marks`);
  const { data: alarms } = usePolled<{ alarms: Alarm[] }>(`${path}/alarms`);
  const summary = useRun(id);
  return (
    <>
      <div class="heading">
        <h1>{run?.name ?? "…"}</h1>
        {run && <Phase phase={run.phase} />}
        {run?.reason && <span class="reason">{run.reason}</span>}
      </div>
      <Problem error={error} />
      {summary && <Summary run={summary} detail={run} />}
      {run && <Conditions conditions={run.conditions} />}
      <Hidden reason={run?.hidden} />
      {alarms && <Alarms alarms={alarms.alarms} />}
      {run && <Figures id={id} route={route} first={run.first} metrics={metrics?.names ?? []} marks={marks?.marks ?? []} />}
      {marks && <Marks marks={marks.marks} />}
      {run && (
        <>
          <div class="columns">
            <Roles roles={run.roles} />
            <Ledger ledger={run.ledger} marks={marks?.marks ?? []} />
          </div>
          <Predicted usage={run.usage} />
          <Generators generators={run.generators} serving={run.serving} />
          <Snapshots id={id} checkpoints={run.checkpoints} problem={run.storeProblem} commands={run.commands} />
          <Logs id={id} />
          <details>
            <summary>What it started with</summary>
            <List of={run.provenance} empty="Nothing is recorded." />
          </details>
          <details class="manifest">
            <summary>Manifest</summary>
            <pre tabIndex={0}>{run.manifest}</pre>
          </details>
        </>
      )}
    </>
  );
}

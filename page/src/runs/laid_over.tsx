// The curves of the selected runs in one chart a figure, by step or by time since each run's first step.
import { useEffect, useMemo, useState } from "preact/hooks";
import { usePolled } from "../api/polled.ts";
import { useSeries } from "../api/series.ts";
import type { Metric, Run, Series } from "../api/types.ts";
import { Chart } from "../chart/chart.tsx";
import { joinLines } from "../chart/data.ts";
import { formatTitle } from "../format.ts";
import { MetricPicker, Section } from "../parts.tsx";
import { replaceQuery, type Route } from "../routing.ts";
import { Differences } from "./differences.tsx";
import { nameApart, parseList, toggleInList } from "./filter.ts";

const USUAL = [/^reward_mean$/, /^evaluation\/.*\/mean$/, /^loss$/, /^accuracy$/];
const MOST_RUNS = 12;

export function LaidOver({ runs, route }: { runs: Run[]; route: Route }) {
  const shown = runs.slice(0, MOST_RUNS);
  const [first, second] = shown;
  const { data } = usePolled<{ names: Metric[] }>(first ? `/runs/${encodeURIComponent(first.id)}/metrics` : null);
  const metrics = data?.names ?? [];
  const chosen = parseList(route.query["figures"]);
  const names = chosen.length ? chosen : pickUsual(metrics);
  const isByTime = route.query["by"] === "time";
  const [series, setSeries] = useState<Record<string, Series>>({});
  const toggle = (name: string): void => replaceQuery(route, { figures: toggleInList(names, name) });
  return (
    <Section title={shown.length === 1 ? "Selected run" : `${shown.length} runs over each other`}>
      {shown.map((run) => (
        <Feed key={run.id} run={run} names={names} onSeries={(got) => setSeries((all) => ({ ...all, [run.id]: got }))} />
      ))}
      <div class="controls">
        <fieldset class="choice">
          <legend>By</legend>
          {["step", "time"].map((by) => (
            <label key={by}>
              <input
                type="radio"
                name="by"
                checked={(by === "time") === isByTime}
                onChange={() => replaceQuery(route, { by: by === "time" ? by : null })}
              />
              {by}
            </label>
          ))}
        </fieldset>
        <MetricPicker metrics={metrics} label="Add a figure" onPick={(name) => names.includes(name) || toggle(name)} />
      </div>
      <div class="charts">
        {names.map((name) => (
          <Overlay key={name} name={name} runs={shown} series={series} isByTime={isByTime} onClose={() => toggle(name)} />
        ))}
      </div>
      {first && second && shown.length === 2 && <Differences first={first} second={second} />}
    </Section>
  );
}

function pickUsual(metrics: readonly Metric[]): string[] {
  const found = USUAL.flatMap((usual) => metrics.find(({ name }) => usual.test(name))?.name ?? []);
  return (found.length ? found : metrics.map(({ name }) => name)).slice(0, 2);
}

/** Reads one run's series: hooks cannot be called in a loop, components can. */
function Feed({ run, names, onSeries }: { run: Run; names: string[]; onSeries: (series: Series) => void }) {
  const { data } = useSeries(run.id, names);
  useEffect(() => {
    if (data) onSeries(data);
  }, [data]);
  return null;
}

interface OverlayProps {
  name: string;
  runs: Run[];
  series: Record<string, Series>;
  isByTime: boolean;
  onClose: () => void;
}

function Overlay({ name, runs, series, isByTime, onClose }: OverlayProps) {
  const data = useMemo(() => {
    const labels = nameApart(runs);
    const parts = runs.flatMap((run) => {
      const own = series[run.id];
      const values = own?.series[name];
      return own && values ? [{ label: labels.get(run.id) ?? run.name, x: isByTime ? own.elapsed.map((seconds) => seconds / 60) : own.steps, values }] : [];
    });
    return joinLines(parts);
  }, [runs.map(({ id }) => id).join(), series, name, isByTime]);
  return <Chart title={formatTitle(name)} data={data} xName={isByTime ? "minutes" : "step"} height={220} onClose={onClose} />;
}

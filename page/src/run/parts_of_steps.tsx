// The seconds of each part of a step, over all steps: where a run became slow.
import { useMemo } from "preact/hooks";
import { usePolled } from "../api/polled.ts";
import { useSeries } from "../api/series.ts";
import type { Mark, Metric } from "../api/types.ts";
import { Chart } from "../chart/chart.tsx";
import { toChartMark } from "../chart/data.ts";
import { formatName } from "../format.ts";

const PARTS = ["seconds", "generate_seconds", "score_seconds", "train_seconds", "broadcast_seconds"];

export function Parts({ id }: { id: string }) {
  const { data: metrics } = usePolled<{ names: Metric[] }>(`/runs/${encodeURIComponent(id)}/metrics`);
  const names = PARTS.filter((part) => metrics?.names.some(({ name }) => name === part));
  const { data: series } = useSeries(id, names);
  const { data: marked } = usePolled<{ marks: Mark[] }>(`/runs/${encodeURIComponent(id)}/marks`);
  const marks = useMemo(() => marked?.marks.map(toChartMark) ?? [], [marked]);
  const data = useMemo(
    () => ({
      x: series?.steps ?? [],
      lines: names.map((name) => ({ label: formatPart(name), values: series?.series[name] ?? [] })),
    }),
    [series, names.join()],
  );
  return names.length > 0 ? <Chart title="Seconds of each part, over the steps" data={data} xName="step" height={220} marks={marks} /> : null;
}

function formatPart(name: string): string {
  return name === "seconds" ? "whole step" : formatName(name.replace("_seconds", ""));
}

// The charts of a run: those to see first, and any other figure by search; marks are on each of them.
import { useMemo } from "preact/hooks";
import { useSeries } from "../api/series.ts";
import type { FirstChart, Mark, Metric, Series } from "../api/types.ts";
import { Chart } from "../chart/chart.tsx";
import { toChartMark, type ChartData, type ChartMark } from "../chart/data.ts";
import { formatName, formatTitle } from "../format.ts";
import { MetricPicker, Problem, Section } from "../parts.tsx";
import { replaceQuery, type Route } from "../routing.ts";
import { parseList, toggleInList } from "../runs/filter.ts";

/** Of a request for values. */
const MOST_NAMES = 64;

interface Props {
  id: string;
  route: Route;
  first: FirstChart[];
  metrics: readonly Metric[];
  marks: readonly Mark[];
}

export function Figures({ id, route, first, metrics, marks }: Props) {
  const added = parseList(route.query["figures"]);
  const charts = [...first, ...added.map((name) => ({ title: formatTitle(name), names: [name] }))];
  const names = [...new Set(charts.flatMap((chart) => chart.names))].slice(0, MOST_NAMES);
  const { data, error } = useSeries(id, names);
  const points = useMemo(() => marks.map(toChartMark), [marks]);
  const toggle = (name: string): void => replaceQuery(route, { figures: toggleInList(added, name) });
  return (
    <Section title="Figures">
      <Problem error={error} />
      <div class="controls">
        <MetricPicker metrics={metrics} label="Add a figure" onPick={(name) => names.includes(name) || toggle(name)} />
      </div>
      <div class="charts">
        {charts.map((chart, index) => (
          <RunChart
            key={chart.names.join()}
            chart={chart}
            help={chart.names.length === 1 ? (metrics.find(({ name }) => name === chart.names[0])?.help ?? "") : ""}
            series={data}
            marks={points}
            {...(index >= first.length ? { onClose: () => toggle(chart.names[0] ?? "") } : {})}
          />
        ))}
      </div>
    </Section>
  );
}

interface RunChartProps {
  chart: FirstChart;
  help: string;
  series: Series | null;
  marks: readonly ChartMark[];
  onClose?: () => void;
}

function RunChart({ chart, help, series, marks, onClose }: RunChartProps) {
  const data = useMemo(
    (): ChartData => ({
      x: series?.steps ?? [],
      lines: chart.names.map((name) => ({ label: formatName(name), values: series?.series[name] ?? [] })),
    }),
    [series, chart.names.join()],
  );
  return <Chart title={chart.title} help={help} data={data} xName="step" marks={marks} {...(onClose ? { onClose } : {})} />;
}

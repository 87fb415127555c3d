// A figure: its title, the values at the cursor or the last ones, the plot, and the same numbers as a table.
import { useMemo, useState } from "preact/hooks";
import { formatNumber } from "../format.ts";
import { pickStroke } from "../palette.ts";
import { describeChart, readValues, type ChartData, type ChartMark } from "./data.ts";
import { Plot } from "./plot.tsx";
import { NumbersTable } from "./table.tsx";
import { useIsDark } from "./theme.ts";

interface Props {
  title: string;
  help?: string;
  data: ChartData;
  xName: string;
  marks?: readonly ChartMark[];
  height?: number;
  onClose?: () => void;
}

const NO_MARKS: readonly ChartMark[] = [];

export function Chart({ title, help, data, xName, marks = NO_MARKS, height = 170, onClose }: Props) {
  const isDark = useIsDark();
  const [cursor, setCursor] = useState<{ place: number | null; mark: ChartMark | null }>({ place: null, mark: null });
  const description = useMemo(() => describeChart(title, data, xName), [title, data, xName]);
  const values = readValues(data, cursor.place);
  return (
    <figure class="chart" aria-label={title}>
      <figcaption>
        <div>
          <h3>{title}</h3>
          {help && <p class="help">{help}</p>}
        </div>
        {onClose && (
          <button type="button" class="quiet" aria-label={`Remove ${title}`} onClick={onClose}>
            ×
          </button>
        )}
      </figcaption>
      <ul class="legend">
        {data.lines.map(({ label }, index) => (
          <li key={label}>
            <Swatch index={index} isDark={isDark} />
            <span class="name">{label}</span>
            <span class="number">{formatNumber(values[index])}</span>
          </li>
        ))}
      </ul>
      <p class="visually-hidden">{description}</p>
      <Plot
        data={data}
        marks={marks}
        height={height}
        group={xName}
        isDark={isDark}
        onCursor={(place, mark) =>
          setCursor((last) => (last.place === place && last.mark === mark ? last : { place, mark }))
        }
      />
      <div class="below">
        <span class="cursor" aria-hidden="true">
          {cursor.place === null ? xName : `${xName} ${formatNumber(data.x[cursor.place])}`}
          {cursor.mark && ` · ${cursor.mark.kind}: ${cursor.mark.text}`}
        </span>
        <NumbersTable title={title} data={data} xName={xName} />
      </div>
    </figure>
  );
}

function Swatch({ index, isDark }: { index: number; isDark: boolean }) {
  const { colour, dash } = pickStroke(index, isDark);
  return (
    <svg class="swatch" viewBox="0 0 16 4" aria-hidden="true">
      <line x1="0" y1="2" x2="16" y2="2" stroke={colour} stroke-width="3" stroke-dasharray={dash.join(" ")} />
    </svg>
  );
}

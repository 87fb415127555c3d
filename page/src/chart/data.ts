// What a chart draws, as plain data: joined series, the words that describe them, the rows of their table.
import type { Mark } from "../api/types.ts";
import { formatNumber } from "../format.ts";

export interface Line {
  label: string;
  values: (number | null)[];
}

export interface ChartData {
  x: number[];
  lines: Line[];
}

export interface ChartMark {
  x: number;
  kind: string;
  text: string;
}

export function toChartMark({ step, kind, text }: Mark): ChartMark {
  return { x: step, kind, text };
}

/** Lines with abscissas of their own on those of all, in order. */
export function joinLines(parts: { x: number[]; label: string; values: (number | null)[] }[]): ChartData {
  const x = [...new Set(parts.flatMap((part) => part.x))].toSorted((a, b) => a - b);
  const places = new Map(x.map((value, place) => [value, place]));
  const lines = parts.map((part) => {
    const values: (number | null)[] = x.map(() => null);
    part.x.forEach((value, index) => {
      values[places.get(value) ?? 0] = part.values[index] ?? null;
    });
    return { label: part.label, values };
  });
  return { x, lines };
}

/** The last value that a line has, and the place of it. */
export function findLast(values: readonly (number | null)[]): { value: number; place: number } | null {
  for (let place = values.length - 1; place >= 0; place--) {
    const value = values[place];
    if (value !== null && value !== undefined) return { value, place };
  }
  return null;
}

/** A sentence for who cannot see the chart. */
export function describeChart(title: string, data: ChartData, xName: string): string {
  const parts = data.lines.map(({ label, values }) => {
    const last = findLast(values);
    if (last === null) return `${label}: no values yet`;
    const present = values.filter((value) => value !== null);
    const low = present.reduce((a, b) => Math.min(a, b), Infinity);
    const high = present.reduce((a, b) => Math.max(a, b), -Infinity);
    const range = `from ${formatNumber(low)} to ${formatNumber(high)}`;
    return `${label}: ${formatNumber(last.value)} at ${xName} ${formatNumber(data.x[last.place])}, ${range}`;
  });
  return `Chart of ${title}. ${parts.join("; ")}.`;
}

/** The values at the cursor's place, or the last ones. */
export function readValues(data: ChartData, place: number | null): (number | null)[] {
  return data.lines.map(({ values }) =>
    place === null ? (findLast(values)?.value ?? null) : (values[place] ?? null),
  );
}

// uPlot in a box that it fills: made once, then given new data, so that a new step moves the line and nothing flickers.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { formatTicks } from "../format.ts";
import { pickStroke } from "../palette.ts";
import type { ChartData, ChartMark } from "./data.ts";
import { drawMarks, findMark } from "./marks.ts";

const FONT = "12px system-ui, sans-serif";
/** Pixels between values from which each is also a point. */
const ROOM_PX = 10;
/** uPlot's status after its first drawing, before which it lays out its axes. */
const READY = 1;

/** Distances of ticks between which no step is. */
const WHOLE = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

interface Props {
  data: ChartData;
  marks: readonly ChartMark[];
  height: number;
  group: string;
  isDark: boolean;
  onCursor: (place: number | null, mark: ChartMark | null) => void;
}

export function Plot({ data, marks, height, group, isDark, onCursor }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const now = useRef({ marks, onCursor });
  now.current = { marks, onCursor };
  const labels = data.lines.map(({ label }) => label).join("\n");

  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const options = makeOptions(data, { width: element.clientWidth, height, group, isDark });
    options.hooks = {
      draw: [(made) => drawMarks(made, now.current.marks, isDark)],
      setCursor: [
        (made) => {
          const { left = -1, idx } = made.cursor;
          if (left < 0) now.current.onCursor(null, null);
          else now.current.onCursor(idx ?? null, findMark(made, now.current.marks, left));
        },
      ],
    };
    const made = new uPlot(options, align(data), element);
    plot.current = made;
    const resized = new ResizeObserver(() => {
      if (element.clientWidth > 0) made.setSize({ width: element.clientWidth, height });
    });
    resized.observe(element);
    return () => {
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [labels, isDark, height, group]);

  useEffect(() => plot.current?.setData(align(data), !isZoomed(plot.current)), [data]);
  useEffect(() => {
    if (plot.current?.status === READY) plot.current.redraw(false);
  }, [marks]);
  return <div class="plot" ref={box} aria-hidden="true" />;
}

function isWhole(steps: readonly number[]): boolean {
  return steps.every(Number.isInteger);
}

function align(data: ChartData): uPlot.AlignedData {
  return [data.x, ...data.lines.map(({ values }) => values)];
}

/** A reader who has chosen a part of the steps stays there; a double click shows all again. */
function isZoomed(plot: uPlot): boolean {
  const { min, max } = plot.scales["x"] ?? {};
  const steps = plot.data[0];
  return min != null && max != null && steps.length > 1 && (min > (steps[0] ?? 0) || max < (steps.at(-1) ?? 0));
}

interface Look {
  width: number;
  height: number;
  group: string;
  isDark: boolean;
}

function makeOptions(data: ChartData, { width, height, group, isDark }: Look): uPlot.Options {
  const axis: uPlot.Axis = {
    font: FONT,
    stroke: isDark ? "#a9b0ba" : "#5b626c",
    grid: { stroke: isDark ? "#2a2e35" : "#ececea", width: 1 },
    ticks: { show: false },
  };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { sync: { key: group }, points: { size: 7 }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: padRange } },
    axes: [
      { ...axis, grid: { show: false }, space: 60, size: 26, ...(isWhole(data.x) && { incrs: WHOLE }), values: (_, ticks) => formatTicks(ticks) },
      { ...axis, space: 36, size: 54, values: (_, ticks) => formatTicks(ticks) },
    ],
    series: [
      {},
      ...data.lines.map((_, index): uPlot.Series => {
        const { colour, dash } = pickStroke(index, isDark);
        const points = { show: hasRoom, size: 5, fill: colour };
        return { stroke: colour, dash, width: 1.8, spanGaps: true, points };
      }),
    ],
  };
}

/** Whether the values of a line are far enough from each other to be points. */
function hasRoom(plot: uPlot, index: number, from: number, to: number): boolean {
  const values = Array.from(plot.data[index] ?? []);
  const places = values.flatMap((value, place) =>
    value != null && place >= from && place <= to ? (plot.data[0][place] ?? []) : [],
  );
  const [first, last] = [places[0], places.at(-1)];
  if (first === undefined || last === undefined) return false;
  return plot.valToPos(last, "x") - plot.valToPos(first, "x") >= ROOM_PX * (places.length - 1);
}

/** The range of values with some room; a line that stays on one value is in the middle. */
function padRange(_: uPlot, low: number, high: number): uPlot.Range.MinMax {
  if (low === null || high === null) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return uPlot.rangeNum(low, high, 0.1, true);
}

// The series of a run: the steps since the last one are fetched and appended; what was written again is read anew.
import { useRef, useState } from "preact/hooks";
import { get, withQuery } from "./client.ts";
import { asRefused, usePolling, type Answer } from "./polled.ts";
import type { Series } from "./types.ts";

/** `series` with `more` behind it. */
export function appendSeries(series: Series, more: Series): Series {
  if (more.steps.length === 0) return series;
  const joined = Object.fromEntries(
    Object.entries(series.series).map(([name, values]) => [
      name,
      values.concat(more.series[name] ?? more.steps.map(() => null)),
    ]),
  );
  return {
    ...more,
    steps: series.steps.concat(more.steps),
    elapsed: series.elapsed.concat(more.elapsed),
    series: joined,
  };
}

/** `names` of a run, kept up to date. */
export function useSeries(id: string, names: readonly string[]): Answer<Series> {
  const key = [id, ...names].join("\n");
  const held = useRef<{ key: string; series: Series | null }>({ key, series: null });
  const [answer, setAnswer] = useState<Answer<Series> & { of: string }>({ data: null, error: null, of: id });
  usePolling(async () => {
    if (names.length === 0) return;
    const last = held.current.key === key ? held.current.series : null;
    try {
      const series = await readSeries(id, names, last);
      held.current = { key, series };
      setAnswer((before) => (before.data === series && !before.error ? before : { data: series, error: null, of: id }));
    } catch (problem) {
      const error = asRefused(problem);
      setAnswer((before) => ({ data: before.of === id ? before.data : null, error, of: id }));
    }
  }, [key]);
  return answer.of === id ? answer : { data: null, error: null };
}

async function readSeries(id: string, names: readonly string[], last: Series | null): Promise<Series> {
  const path = `/runs/${encodeURIComponent(id)}/metrics`;
  const query = { names: names.join(",") };
  if (last !== null) {
    const more = await get<Series>(withQuery(path, { ...query, after: last.steps.at(-1) }));
    if (more.generation === last.generation) return appendSeries(last, more);
  }
  return await get<Series>(withQuery(path, query));
}

// The pages of samples that are shown: the first is kept up to date, older ones are appended as they are asked for.
import { useEffect, useState } from "preact/hooks";
import { get, withQuery, type Refused } from "../api/client.ts";
import { asRefused, usePolled } from "../api/polled.ts";
import type { Sample, Samples } from "../api/types.ts";

export type Query = Record<string, string | number | null | undefined>;

/** Where samples come from. */
export interface Source {
  list: string;
  scores: string;
  /** Before the id of one, and a part of it. */
  one: string;
  /** True for what never changes. */
  isFixed: boolean;
}

/** Those that the run keeps of each step, or all of one step, from its episode. */
export function pickSource(run: string, episode: string | undefined): Source {
  const base = `/runs/${encodeURIComponent(run)}`;
  if (episode === undefined) {
    return { list: `${base}/samples`, scores: `${base}/scores`, one: `${base}/samples`, isFixed: false };
  }
  const list = `${base}/episodes/${encodeURIComponent(episode)}`;
  return { list, scores: `${list}/scores`, one: `${base}/episodes`, isFixed: true };
}

interface Pages {
  path: string;
  first: Samples | null;
  older: Samples[];
}

/** What the samples that are shown were chosen from. */
export interface Extent {
  count: number;
  /** Null without a text that is searched. */
  searched: number | null;
  total: number;
  whole: boolean;
  steps: readonly number[];
}

export interface Paged {
  samples: Sample[];
  steps: number[];
  extent: Extent | null;
  hasNewer: boolean;
  hasOlder: boolean;
  error: Refused | null;
  showNewer: () => void;
  showOlder: () => void;
}

/** `isHeld`: someone reads, so what is new waits until they ask for it. */
export function usePages(source: Source, query: Query, isHeld: boolean): Paged {
  const base = source.list;
  const path = withQuery(base, query);
  const { data, error } = usePolled<Samples>(path, source.isFixed);
  const [pages, setPages] = useState<Pages>({ path, first: null, older: [] });
  const [problem, setProblem] = useState<Refused | null>(null);
  const isFresh = pages.path !== path || pages.first === null;
  const showNewer = (): void => {
    setProblem(null);
    setPages({ path, first: data, older: [] });
  };
  useEffect(() => {
    if (data !== null && (isFresh || (!isHeld && pages.older.length === 0))) showNewer();
  }, [data, path]);
  // While the first answer to a new question is awaited, what was shown stays, so that nothing flickers.
  const shown = isFresh && data !== null ? [data] : [pages.first, ...pages.older];
  const next = shown.at(-1)?.next ?? null;
  const showOlder = (): void => {
    if (next === null) return;
    get<Samples>(withQuery(base, { ...query, before: next })).then(
      (page) => setPages((last) => (isNext(last, path, next) ? { ...last, older: [...last.older, page] } : last)),
      (reason: unknown) => setProblem(asRefused(reason)),
    );
  };
  const samples = shown.flatMap((page) => page?.samples ?? []);
  const searched = sumSearched(shown);
  // A reply searches for a second at most: without a match in it the next one goes on.
  const goesOn = searched !== null && samples.length < leastOf(query) && next !== null && !problem;
  useEffect(() => {
    if (goesOn) showOlder();
  }, [goesOn, next]);
  return {
    samples,
    steps: data?.steps ?? [],
    extent: data && { count: data.count, searched, total: data.total, whole: data.whole, steps: data.steps },
    hasNewer: data !== null && !isFresh && hasOthers(pages.first, data),
    hasOlder: next !== null,
    error: error ?? problem,
    showNewer,
    showOlder,
  };
}

/** False if the page is there by now, or pages of another question are. */
function isNext(pages: Pages, path: string, next: string): boolean {
  return pages.path === path && (pages.older.at(-1) ?? pages.first)?.next === next;
}

function sumSearched(pages: readonly (Samples | null)[]): number | null {
  const counts = pages.map((page) => page?.searched ?? null);
  return counts.includes(null) ? null : counts.reduce<number>((sum, count) => sum + (count ?? 0), 0);
}

function leastOf(query: Query): number {
  return Number(query["limit"] ?? 1);
}

function hasOthers(shown: Samples | null, now: Samples): boolean {
  return now.samples.some(({ id }, index) => shown?.samples[index]?.id !== id);
}

// Hooks that keep an answer of the API up to date: every second, not while the tab is hidden.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, isExport, Refused } from "./client.ts";

/** Below two seconds by more than a reply takes: within these a new step is to be seen. */
const PERIOD_MS = 1000;

export interface Answer<T> {
  data: T | null;
  error: Refused | null;
}

/** Calls `read` now and, unless it is to be read once, every PERIOD_MS until what it depends on changes. */
export function usePolling(read: () => Promise<void>, depends: readonly unknown[], isOnce = false): void {
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isOver = false;
    const poll = async (): Promise<void> => {
      if (!document.hidden) await latest.current();
      if (!isOver && !isExport && !isOnce) timer = setTimeout(() => void poll(), PERIOD_MS);
    };
    void poll();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, depends);
}

/** The answer for `path`, null for none; the last data stays while the server cannot be reached. */
export function usePolled<T>(path: string | null, isOnce = false): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T> & { path: string | null }>({ data: null, error: null, path });
  usePolling(async () => {
    if (path === null) return;
    try {
      const data = await get<T>(path);
      setAnswer((last) => (last.data === data && last.path === path && !last.error ? last : { data, error: null, path }));
    } catch (problem) {
      const error = asRefused(problem);
      setAnswer((last) => ({ data: last.path === path && error.status === 0 ? last.data : null, error, path }));
    }
  }, [path], isOnce);
  return answer.path === path ? answer : { data: null, error: null };
}

/** The answer for what does not change. */
export function useFetched<T>(path: string | null): Answer<T> {
  return usePolled<T>(path, true);
}

export function asRefused(problem: unknown): Refused {
  return problem instanceof Refused ? problem : new Refused(0, "the server does not answer; the page goes on trying");
}

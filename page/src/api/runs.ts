// The list of runs, and one of them: every view names the run that it shows.
import { usePolled, type Answer } from "./polled.ts";
import type { Run } from "./types.ts";

export function useRuns(): Answer<{ runs: Run[] }> {
  return usePolled("/runs");
}

/** null until the list is here, or if the run is not in it. */
export function useRun(id: string): Run | null {
  return useRuns().data?.runs.find((run) => run.id === id) ?? null;
}

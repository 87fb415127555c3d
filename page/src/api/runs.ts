// The list of runs, and one of them: every view names the run that it shows.
import { useEffect, useState } from "preact/hooks";
import { withQuery } from "./client.ts";
import { usePolled, type Answer } from "./polled.ts";
import type { Run, Runs } from "./types.ts";

const NAMESPACES = "rlhf-namespaces";

export function useRuns(): Answer<Runs> {
  const [namespaces, setNamespaces] = useState(readNamespaces());
  useEffect(() => {
    const follow = (): void => setNamespaces(readNamespaces());
    addEventListener(NAMESPACES, follow);
    return () => removeEventListener(NAMESPACES, follow);
  }, []);
  return usePolled(withQuery("/runs", { namespaces }));
}

/** On a cluster: those that the viewer has named in this tab, with commas between them. */
export function readNamespaces(): string {
  return globalThis.sessionStorage?.getItem(NAMESPACES) ?? "";
}

export function storeNamespaces(text: string): void {
  sessionStorage.setItem(NAMESPACES, text.split(/[\s,]+/).filter(Boolean).join(","));
  dispatchEvent(new Event(NAMESPACES));
}

/** null until the list is here, or if the run is not in it. */
export function useRun(id: string): Run | null {
  return useRuns().data?.runs.find((run) => run.id === id) ?? null;
}

// Which runs are shown and in what order, and how far each has come: decisions without effects.
import type { Run } from "../api/types.ts";

export type Column = "name" | "phase" | "step" | "reward" | "heldOut" | "gpus" | "cost" | "seconds" | "updated";

/** Runs that have every word in their name, place, phase or algorithm. */
export function filterRuns(runs: readonly Run[], text: string): Run[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => {
    const all = [run.name, run.id, run.place, run.phase, run.algorithm].join(" ").toLowerCase();
    return words.every((word) => all.includes(word));
  });
}

/** By a column; runs without a value last, whatever the direction. */
export function sortRuns(runs: readonly Run[], column: Column, isDescending: boolean): Run[] {
  const sign = isDescending ? -1 : 1;
  return runs.toSorted((a, b) => {
    const [left, right] = [a[column], b[column]];
    if (left === null || right === null) return Number(left === null) - Number(right === null);
    if (typeof left === "number" && typeof right === "number") return sign * (left - right);
    return sign * String(left).localeCompare(String(right));
  });
}

export function formatProgress(run: Pick<Run, "step" | "steps">): string {
  if (run.step === null) return "–";
  return run.steps === null ? String(run.step) : `${run.step} / ${run.steps}`;
}

/** A name for each run that no other one has: those of the same job have the end of their place too. */
export function nameApart(runs: readonly Run[]): Map<string, string> {
  const withPlace = (run: Run): string => `${run.name} (${run.place.replace(/\/+$/, "").split("/").at(-1)})`;
  const isAlone = (name: (run: Run) => string, run: Run): boolean => runs.filter((other) => name(other) === name(run)).length === 1;
  return new Map(
    runs.map((run) => {
      if (isAlone(({ name }) => name, run)) return [run.id, run.name];
      return [run.id, isAlone(withPlace, run) ? withPlace(run) : `${run.name} (${run.place})`];
    }),
  );
}

/** The list of identifiers in an argument, in the order chosen. */
export function parseList(text: string | undefined): string[] {
  return (text ?? "").split(",").filter(Boolean).map(decodeURIComponent);
}

export function toggleInList(list: readonly string[], entry: string): string {
  const next = list.includes(entry) ? list.filter((other) => other !== entry) : [...list, entry];
  return next.map(encodeURIComponent).join(",");
}

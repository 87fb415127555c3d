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

/** The list of identifiers in an argument, in the order chosen. */
export function parseList(text: string | undefined): string[] {
  return (text ?? "").split(",").filter(Boolean).map(decodeURIComponent);
}

export function toggleInList(list: readonly string[], entry: string): string {
  const next = list.includes(entry) ? list.filter((other) => other !== entry) : [...list, entry];
  return next.map(encodeURIComponent).join(",");
}

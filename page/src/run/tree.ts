// The tree of a run's snapshots as rows, the newest first: snapshots, starts between them, clones, and where it begins.
import type { Checkpoint, Clones, Relative } from "../api/types.ts";

export type Branch =
  | { kind: "snapshot"; checkpoint: Checkpoint }
  | { kind: "start"; from: number | null }
  | { kind: "clone" | "origin"; step: number; run: Relative | null; store: string };

/** A clone is above the snapshot that it begins from, or where that was. */
export function growTree(checkpoints: readonly Checkpoint[], { origin, clones }: Clones): Branch[] {
  const rows: Branch[] = [];
  const left = clones.toSorted((a, b) => b.step - a.step);
  const addClones = (from: number): void => {
    for (let clone = left[0]; clone !== undefined && clone.step >= from; clone = left[0]) {
      rows.push({ kind: "clone", ...clone, store: "" });
      left.shift();
    }
  };
  const ordered = checkpoints.toSorted((a, b) => b.step - a.step);
  ordered.forEach((checkpoint, index) => {
    addClones(checkpoint.step);
    rows.push({ kind: "snapshot", checkpoint });
    const before = ordered[index + 1];
    if (before !== undefined && before.epoch !== checkpoint.epoch) rows.push({ kind: "start", from: before.step });
  });
  addClones(0);
  if (origin !== null) rows.push({ kind: "origin", ...origin });
  return rows;
}

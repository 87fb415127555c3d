// Predicted seconds and memory beside measured ones, and how far off they were.
import type { Usage } from "../api/types.ts";
import { formatNumber, NONE } from "../format.ts";

export interface Row {
  name: string;
  predicted: number | null;
  measured: number | null;
}

/** Each phase that was predicted or measured; none before the first step of a run without a prediction. */
export function listRows({ predicted, phaseSeconds = {}, stepSeconds }: Usage): Row[] {
  if (!predicted && stepSeconds === null) return [];
  const names = Object.keys({ ...predicted?.phases, ...phaseSeconds });
  const phases = names.map((name) => ({ name, predicted: predicted?.phases[name] ?? null, measured: phaseSeconds[name] ?? null }));
  return [...phases, { name: "whole step", predicted: predicted?.step ?? null, measured: stepSeconds }];
}

/** How far the prediction was from what it took, as `rlhf plan --after` has it. */
export function formatOff({ predicted, measured }: Row): string {
  if (!measured || predicted === null) return NONE;
  const percent = Math.round((predicted / measured - 1) * 100);
  return `${percent < 0 ? "−" : "+"}${Math.abs(percent)}%`;
}

export interface MemoryRow {
  role: string;
  predicted: string;
  measured: string;
}

/** Of each role; only the trainer measures its own, on a GPU. */
export function listMemory({ memoryPredicted, memoryPeak }: Usage): MemoryRow[] {
  const roles = Object.keys({ ...memoryPredicted, ...(memoryPeak !== null && { trainer: "" }) });
  return roles.map((role) => ({
    role,
    predicted: memoryPredicted[role] || NONE,
    measured: role === "trainer" && memoryPeak !== null ? `${formatNumber(memoryPeak)} GB` : NONE,
  }));
}

// Predicted seconds and memory beside measured ones, and how far off they were.
import type { Usage } from "../api/types.ts";
import { formatNumber, NONE } from "../format.ts";

export interface Row {
  name: string;
  predicted: number | null;
  measured: number | null;
  /** True where one is not what the other is. */
  isOther?: boolean;
}

/** Each phase that was predicted or measured; none before the first step of a run without a prediction. */
export function listRows({ predicted, phaseSeconds = {}, stepSeconds, generatesAhead }: Usage): Row[] {
  if (!predicted && stepSeconds === null) return [];
  const isWait = (name: string): boolean => generatesAhead === true && name === "generate";
  const names = Object.keys({ ...predicted?.phases, ...phaseSeconds });
  const phases = names.map((name) => ({
    name: isWait(name) ? "generate, measured as waited for" : name,
    predicted: predicted?.phases[name] ?? null,
    measured: phaseSeconds[name] ?? null,
    ...(isWait(name) && { isOther: true }),
  }));
  return [...phases, { name: "whole step", predicted: predicted?.step ?? null, measured: stepSeconds }];
}

/** How far the prediction was from what it took, as `rlhf plan --after` has it. */
export function formatOff({ predicted, measured, isOther }: Row): string {
  if (!measured || predicted === null || isOther) return NONE;
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

// Predicted seconds beside measured ones, and how far off they were.
import type { Usage } from "../api/types.ts";
import { NONE } from "../format.ts";

export interface Row {
  name: string;
  predicted: number;
  measured: number | null;
}

export function listRows({ predicted, phaseSeconds, stepSeconds }: Usage): Row[] {
  if (!predicted) return [];
  const phases = Object.entries(predicted.phases).map(([name, seconds]) => ({ name, predicted: seconds, measured: phaseSeconds?.[name] ?? null }));
  return [...phases, { name: "whole step", predicted: predicted.step, measured: stepSeconds }];
}

/** How far the prediction was from what it took, as `rlhf plan --after` has it. */
export function formatOff({ predicted, measured }: Row): string {
  if (!measured) return NONE;
  const percent = Math.round((predicted / measured - 1) * 100);
  return `${percent < 0 ? "−" : "+"}${Math.abs(percent)}%`;
}

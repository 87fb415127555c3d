// What a token's colour says: a value between -1 and 1 for each way of colouring, and the words for its values.
import type { Token } from "../api/types.ts";
import { formatNumber } from "../format.ts";

export const MODES = ["ratio", "kl", "surprise", "entropy", "advantage", "mask", "version"] as const;
export type Mode = (typeof MODES)[number];

export const MODE_HELP: Record<Mode, [title: string, help: string]> = {
  ratio: ["Ratio", "probability by the trainer over that when it was sampled: blue above 1, orange below; full at a factor of 2"],
  kl: ["KL", "log-probability of the trainer less the reference's: blue where the policy is fonder of the token, orange where less; full at 2 nats"],
  surprise: ["Surprise", "minus the log-probability when it was sampled: full at 5 nats"],
  entropy: ["Entropy", "of the policy before the update, where the token was sampled: full at 3 nats"],
  advantage: ["Advantage", "blue where the update makes it likelier, orange where less; full at the largest of the response"],
  mask: ["Mask", "blue where it was trained on"],
  version: ["Version", "weight version that sampled it: clear is the newest, orange the oldest of the response"],
};

const FULL_RATIO = Math.log(2);
const FULL_NATS = 2;
const FULL_SURPRISE = 5;
const FULL_ENTROPY = 3;

/** null where the token lacks the value. */
export function shadeToken(token: Token, mode: Mode, all: readonly Token[]): number | null {
  switch (mode) {
    case "ratio":
      return token.ratio === null || token.ratio <= 0 ? null : clamp(Math.log(token.ratio) / FULL_RATIO);
    case "kl":
      return token.kl === null ? null : clamp(token.kl / FULL_NATS);
    case "surprise":
      return token.logprob === null ? null : clamp(-token.logprob / FULL_SURPRISE);
    case "entropy":
      return token.entropy === null ? null : clamp(token.entropy / FULL_ENTROPY);
    case "advantage":
      return token.advantage === null ? null : scale(token.advantage, largest(all.map(({ advantage }) => advantage)));
    case "mask":
      return Number(token.mask);
    case "version":
      return shadeVersion(token, all);
  }
}

/** Modes for which at least one token has a value. */
export function listModes(tokens: readonly Token[]): Mode[] {
  return MODES.filter((mode) => tokens.some((token) => shadeToken(token, mode, tokens) !== null));
}

export function describeToken(token: Token): string {
  if (!token.mask) return "not trained on";
  const parts: [string, number | null][] = [
    ["log-probability as sampled", token.logprob],
    ["by the trainer", token.old],
    ["by the reference", token.reference],
    ["ratio", token.ratio],
    ["entropy", token.entropy],
    ["advantage", token.advantage],
    ["weight version", token.version],
  ];
  return parts
    .flatMap(([name, value]) => (value === null ? [] : `${name} ${formatNumber(value)}`))
    .join(" · ");
}

function shadeVersion(token: Token, all: readonly Token[]): number | null {
  if (token.version === null) return null;
  const versions = all.flatMap(({ version }) => version ?? []);
  const newest = Math.max(...versions);
  return newest === token.version ? 0 : scale(token.version - newest, newest - Math.min(...versions));
}

function largest(values: readonly (number | null)[]): number {
  return Math.max(0, ...values.map((value) => Math.abs(value ?? 0)));
}

function scale(value: number, full: number): number {
  return full > 0 ? clamp(value / full) : 0;
}

function clamp(value: number): number {
  return Math.max(-1, Math.min(1, value));
}

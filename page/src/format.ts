// Values as text: numbers of three or four digits, durations, sizes, times.
import type { Nested } from "./api/types.ts";

export const NONE = "–";

export function formatNumber(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en-US").replaceAll(",", "\u202f").replace("-", "−");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("-", "−").replace("e−", "e-").replace("e+", "e");
  const digits = Math.max(0, (size < 1 ? 2 : 3) - Math.floor(Math.log10(size)));
  return value.toFixed(digits).replace("-", "−");
}

/** Values at an axis: from 10,000 on all in one unit, 12500 as "12.5k", so that no two have the same text. */
export function formatTicks(values: readonly (number | null)[]): string[] {
  const largest = Math.max(...values.map((value) => Math.abs(value ?? 0)));
  const [unit, letter] = largest < 1e4 || largest >= 1e12 ? [1, ""] : largest >= 1e9 ? [1e9, "G"] : largest >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return values.map((value) => {
    if (value === null) return "";
    if (unit === 1 || value === 0) return trimZeros(formatNumber(value));
    return `${Number((value / unit).toFixed(3))}${letter}`.replace("-", "−");
  });
}

function trimZeros(text: string): string {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

/** Every digit, as of samples that are counted. */
export function formatCount(count: number): string {
  return count.toLocaleString("en-US").replaceAll(",", "\u202f");
}

export function formatSeconds(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function formatBytes(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = bytes < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(power && bytes / 1000 ** power < 10 ? 1 : 0)} ${units[power]}`;
}

/** Local date and time, to the minute. */
export function formatTime(time: string | null | undefined): string {
  const date = time ? new Date(time) : null;
  if (date === null || Number.isNaN(date.getTime())) return NONE;
  const two = (part: number): string => String(part).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

export function formatNested(value: Nested | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") return formatNumber(value);
  if (typeof value === "string") return value;
  return JSON.stringify(value);
}

/** As a manifest has it, every digit. */
export function formatExact(value: Nested | undefined): string {
  if (value === null || value === undefined) return NONE;
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Scalars by their path with dots. */
export function flatten(value: Nested, prefix = ""): [string, Nested][] {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[prefix, value]];
  return Object.entries(value).flatMap(([key, inner]) => flatten(inner, prefix ? `${prefix}.${key}` : key));
}

/** A metric's name as words: `response_length_p99` is "response length p99", `evaluation/easy/mean` "easy, mean". */
export function formatName(name: string): string {
  return name.replace(/^evaluation\//, "").replaceAll("/", ", ").replaceAll("_", " ").replace(/\bkl\b/, "KL");
}

/** The same as a title. */
export function formatTitle(name: string): string {
  const text = formatName(name);
  return text.charAt(0).toUpperCase() + text.slice(1);
}

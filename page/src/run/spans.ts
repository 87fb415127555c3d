// A step's spans in rows, one a process, with the length of all, and its bubbles: what the timeline draws.
import type { Span, Timeline } from "../api/types.ts";

export interface SpanRow {
  name: string;
  spans: Span[];
  busy: number;
  idle: number;
}

/** Spans of waiting are bubbles: named, but not work. */
export function isWait(span: Pick<Span, "name">): boolean {
  return span.name.startsWith("wait");
}

export function groupSpans(timeline: Timeline): { rows: SpanRow[]; length: number } {
  const rows = new Map<string, Span[]>();
  for (const span of timeline.spans) rows.set(span.who, [...(rows.get(span.who) ?? []), span]);
  return {
    rows: [...rows].map(([name, spans]) => ({
      name,
      spans,
      busy: measureUnion(spans.filter((span) => !isWait(span))),
      idle: timeline.idle[name] ?? 0,
    })),
    length: Math.max(...timeline.spans.map(({ end }) => end)),
  };
}

/** The time that at least one span covers. */
export function measureUnion(spans: readonly Span[]): number {
  let covered = 0;
  let reached = -Infinity;
  for (const { start, end } of spans.toSorted((a, b) => a.start - b.start)) {
    covered += Math.max(0, end - Math.max(start, reached));
    reached = Math.max(reached, end);
  }
  return covered;
}

/** The longest waits, the longest first. */
export function findBubbles(spans: readonly Span[], most: number): Span[] {
  const length = (span: Span): number => span.end - span.start;
  return spans.filter(isWait).toSorted((a, b) => length(b) - length(a)).slice(0, most);
}

// A step's spans in rows, one a role and rank, with the length of all: what the timeline draws.
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

export function groupSpans(timeline: Timeline): { rows: SpanRow[]; begin: number; length: number } {
  const rows = new Map<string, Span[]>();
  for (const span of timeline.spans) {
    const name = span.rank === null ? span.role : `${span.role} ${span.rank}`;
    rows.set(name, [...(rows.get(name) ?? []), span]);
  }
  const begin = Math.min(...timeline.spans.map(({ start }) => start));
  const length = Math.max(...timeline.spans.map(({ end }) => end)) - begin;
  return {
    rows: [...rows].map(([name, spans]) => {
      const busy = measureUnion(spans.filter((span) => !isWait(span)));
      const idle = timeline.idle[name] ?? timeline.idle[spans[0]?.role ?? ""] ?? Math.max(0, length - busy);
      return { name, spans, busy, idle };
    }),
    begin,
    length,
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

import assert from "node:assert/strict";
import { test } from "node:test";
import { findBubbles, groupSpans } from "../src/run/spans.ts";

const span = (who: string, name: string, start: number, end: number) => ({ who, role: "trainer", name, start, end });
const SPANS = [
  span("trainer rank 0", "wait for responses", 0, 3),
  span("trainer rank 0", "train_policy", 3, 7),
  span("trainer rank 0", "train_critic", 6, 8),
  span("generator-0", "generate", 0, 3),
  span("generator-0", "wait for work", 3, 8),
];

test("a process has one row, which is busy while any of its spans but a wait goes on", () => {
  const waits = { "trainer rank 0": 3, "generator-0": 5 };
  const { rows, length } = groupSpans({ step: 1, recorded: true, spans: SPANS, idle: waits });
  assert.equal(length, 8);
  assert.deepEqual(
    rows.map(({ name, busy, idle }) => [name, busy, idle]),
    [
      ["trainer rank 0", 5, 3],
      ["generator-0", 3, 5],
    ],
  );
});

test("the longest bubbles come first", () => {
  assert.deepEqual(
    findBubbles(SPANS, 1).map(({ who, name }) => [who, name]),
    [["generator-0", "wait for work"]],
  );
});

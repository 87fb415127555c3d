import assert from "node:assert/strict";
import { test } from "node:test";
import type { Checkpoint, Relative } from "../src/api/types.ts";
import { growTree } from "../src/run/tree.ts";

const snapshot = (step: number, epoch: number): Checkpoint => ({
  step, epoch, created: null, bytes: null, good: true, best: false, clone: "", export: "",
});
const run = (name: string): Relative => ({ id: name, name, phase: "Running", step: 1, reward: null, heldOut: null });

test("starts and clones stand where they leave the run, and the origin below all", () => {
  const rows = growTree([snapshot(10, 1), snapshot(20, 1), snapshot(30, 2)], {
    origin: { store: "s3://b/other", step: 5, run: null },
    clones: [
      { step: 20, run: run("one") },
      { step: 15, run: run("of a step that is not kept") },
    ],
  });
  assert.deepEqual(
    rows.map((row) => (row.kind === "snapshot" ? row.checkpoint.step : row.kind === "start" ? `from ${row.from}` : `${row.kind} ${row.step}`)),
    [30, "from 20", "clone 20", 20, "clone 15", 10, "origin 5"],
  );
});

test("a run without anything has no tree", () => {
  assert.deepEqual(growTree([], { origin: null, clones: [] }), []);
});

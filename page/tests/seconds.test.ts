import assert from "node:assert/strict";
import { test } from "node:test";
import type { Usage } from "../src/api/types.ts";
import { NONE } from "../src/format.ts";
import { formatOff, listRows } from "../src/run/seconds.ts";

const USAGE: Usage = {
  gpuSeconds: null,
  cost: null,
  costPerHour: null,
  stepSeconds: 2.5,
  phaseSeconds: { generate: 1.0 },
  predicted: { step: 2.0, phases: { generate: 1.25, train: 0.75 }, by: "runs/a" },
  memoryPeak: null,
  memoryForeseen: null,
};

test("each phase that was predicted stands beside what it took", () => {
  const rows = listRows(USAGE);
  assert.deepEqual(rows, [
    { name: "generate", predicted: 1.25, measured: 1.0 },
    { name: "train", predicted: 0.75, measured: null },
    { name: "whole step", predicted: 2.0, measured: 2.5 },
  ]);
  assert.deepEqual(rows.map(formatOff), ["+25%", NONE, "−20%"]);
});

test("a run without a prediction has no rows", () => {
  assert.deepEqual(listRows({ ...USAGE, predicted: null }), []);
});

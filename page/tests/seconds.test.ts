import assert from "node:assert/strict";
import { test } from "node:test";
import type { Usage } from "../src/api/types.ts";
import { NONE } from "../src/format.ts";
import { formatOff, listMemory, listRows } from "../src/run/seconds.ts";

const USAGE: Usage = {
  gpuSeconds: null,
  cost: null,
  costPerHour: null,
  stepSeconds: 2.5,
  phaseSeconds: { generate: 1.0 },
  predicted: { step: 2.0, phases: { generate: 1.25, train: 0.75 }, by: "runs/a" },
  memoryPeak: null,
  memoryPredicted: {},
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

test("generation that runs ahead is not compared with the time that the trainer waits for it", () => {
  const [generate] = listRows({ ...USAGE, generatesAhead: true });
  assert.equal(generate?.name, "generate, measured as waited for");
  assert.equal(generate && formatOff(generate), NONE);
});

test("a run without a prediction has what it took, and no rows before its first step", () => {
  const rows = listRows({ ...USAGE, predicted: null });
  assert.deepEqual(rows, [
    { name: "generate", predicted: null, measured: 1.0 },
    { name: "whole step", predicted: null, measured: 2.5 },
  ]);
  assert.deepEqual(rows.map(formatOff), [NONE, NONE]);
  assert.deepEqual(listRows({ ...USAGE, predicted: null, stepSeconds: null, phaseSeconds: {} }), []);
});

test("the trainer's memory stands beside what was predicted, the others' alone", () => {
  const usage = { ...USAGE, memoryPeak: 48, memoryPredicted: { trainer: "47.5 GB: all", generator: "2 GB: weights" } };
  assert.deepEqual(listMemory(usage), [
    { role: "trainer", predicted: "47.5 GB: all", measured: "48 GB" },
    { role: "generator", predicted: "2 GB: weights", measured: NONE },
  ]);
  assert.deepEqual(listMemory({ ...USAGE, memoryPeak: 48 }), [{ role: "trainer", predicted: NONE, measured: "48 GB" }]);
  assert.deepEqual(listMemory(USAGE), []);
});

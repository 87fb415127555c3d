import assert from "node:assert/strict";
import { test } from "node:test";
import { flatten, formatBytes, formatName, formatNumber, formatSeconds, formatTicks, formatTime, NONE } from "../src/format.ts";

test("a number has three or four digits, whatever its size", () => {
  const numbers = [0, 7, -3, 1234.5, 12.345, 1.2345, 0.98104, -0.013, 0.0052913, 0.00001234, 12345678];
  assert.deepEqual(numbers.map(formatNumber), [
    "0", "7", "−3", "1235", "12.35", "1.234", "0.981", "−0.0130", "0.00529", "1.23e-5", "1.23e7",
  ]);
});

test("what is no number is a dash", () => {
  assert.deepEqual([null, undefined, Number.NaN, Infinity].map(formatNumber), [NONE, NONE, NONE, NONE]);
  assert.equal(formatTime("not a time"), NONE);
});

test("ticks of a long run are told apart", () => {
  assert.deepEqual(formatTicks([0, 0.5, 250, 9_500, null]), ["0", "0.5", "250", "9\u202f500", ""]);
  assert.deepEqual(formatTicks([-20_000, 0, 2_000, 12_500, 14_000]), ["−20k", "0", "2k", "12.5k", "14k"]);
  assert.deepEqual(formatTicks([0, 500_000, 1_500_000]), ["0", "0.5M", "1.5M"]);
});

test("durations and sizes have the unit that fits", () => {
  assert.deepEqual([0.25, 3.21, 59, 61, 3700, 200_000].map(formatSeconds), [
    "250 ms", "3.2 s", "59 s", "1 min 1 s", "1 h 1 min", "2 d 7 h",
  ]);
  assert.deepEqual([12, 1500, 123_456_789].map(formatBytes), ["12 B", "1.5 kB", "123 MB"]);
});

test("nested values are flat by their path", () => {
  const nested = { code: "a1", versions: { torch: "2.13", extras: [1, 2] } };
  assert.deepEqual(flatten(nested), [["code", "a1"], ["versions.torch", "2.13"], ["versions.extras", [1, 2]]]);
});

test("a name is words, and KL stays KL", () => {
  assert.equal(formatName("kl_mean"), "KL mean");
  assert.equal(formatName("evaluation/held_out/mean"), "held out, mean");
  assert.equal(formatName("groups_without_spread_share"), "groups without spread share");
});

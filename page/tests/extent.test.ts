import assert from "node:assert/strict";
import { test } from "node:test";
import { describeExtent, describeScores } from "../src/samples/extent.ts";

const ALL = { count: 1_000_000, searched: null, total: 1_000_000, whole: true, steps: [1, 2, 10_000] };

test("a page says of how many samples it is", () => {
  assert.equal(describeExtent(ALL, 50, false), "50 of 1\u202f000\u202f000 samples.");
  assert.equal(describeExtent({ ...ALL, count: 1 }, 1, false), "1 of 1 sample.");
});

test("a search says in how many it has looked, and what is still to be read", () => {
  const extent = { ...ALL, searched: 640, whole: false, steps: [812, 813] };
  const text = "Searched 640 of 1\u202f000\u202f000 samples: 3 found. Those before step 812 are still being read, or left out.";
  assert.equal(describeExtent(extent, 3, false), text);
});

test("an export says how many samples the run had", () => {
  assert.equal(describeExtent({ ...ALL, count: 12 }, 12, true), "12 of 12 samples.");
  assert.equal(describeExtent({ ...ALL, whole: false }, 12, true), "This export has the newest of the run’s 1\u202f000\u202f000 samples.");
});

test("a histogram says over which steps and samples it is", () => {
  const scores = { edges: [0, 1], counts: [3], unscored: 1, samples: 4, steps: [7, 7] as [number, number], whole: true };
  assert.equal(describeScores(scores, undefined), "Scores of step 7: 4 samples; 1 without a score");
  const part = { ...scores, unscored: 0, steps: [7, 9] as [number, number], whole: false };
  const searched = { ...scores, whole: false };
  assert.equal(describeScores(searched, "door"), "Scores of step 7: 4 samples with “door”; 1 without a score; older ones are not searched here");
  assert.equal(describeScores(part, "door"), "Scores of steps 7 to 9: 4 samples with “door”; older ones are not searched here");
});

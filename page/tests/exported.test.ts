import assert from "node:assert/strict";
import { test } from "node:test";
import { Exported } from "../src/api/exported.ts";
import { withQuery } from "../src/api/client.ts";

const SAMPLE = { promptId: "0/1", prompt: "p", parts: {}, advantage: null, finished: true, version: 0, tokens: 1, turns: [], group: "g" };
const EXPORTED = new Exported({
  "/runs": { runs: [] },
  "/runs/a/metrics?names=*": { steps: [1, 2, 3], elapsed: [1, 2, 3], generation: 1, series: { loss: [3, 2, 1], kl: [0, 0, 0] } },
  "/runs/a/samples": {
    samples: [
      { ...SAMPLE, id: "1", step: 1, response: "a Bear", score: 0.5 },
      { ...SAMPLE, id: "2", step: 2, response: "a cat", score: 2 },
      { ...SAMPLE, id: "3", step: 2, response: "a dog", score: null },
    ],
    next: null,
  },
});

function listSamples(query: string): string[] {
  return (EXPORTED.lookUp(`/runs/a/samples?${query}`) as { samples: { id: string }[] }).samples.map(({ id }) => id);
}

test("series of an export are those asked for, after a step", () => {
  assert.deepEqual(EXPORTED.lookUp("/runs/a/metrics?names=loss&after=1"), {
    steps: [2, 3], elapsed: [2, 3], generation: 1, series: { loss: [2, 1] },
  });
});

test("samples of an export are filtered and ordered as the server does", () => {
  assert.deepEqual(listSamples("search=bear"), ["1"]);
  assert.deepEqual(listSamples(""), ["2", "3", "1"]);
  assert.deepEqual(listSamples("order=oldest"), ["1", "2", "3"]);
  assert.deepEqual(listSamples("order=best"), ["2", "1"]);
  assert.deepEqual(listSamples("order=worst"), ["1", "2"]);
  assert.deepEqual(listSamples("low=1&high=2"), ["2"]);
  assert.deepEqual(listSamples("step=1"), ["1"]);
});

test("what an export lacks is not there, also by a name that every object has", () => {
  assert.equal(EXPORTED.lookUp("/runs/b"), undefined);
  assert.equal(EXPORTED.lookUp("constructor"), undefined);
});

test("a query has only what is set", () => {
  assert.equal(withQuery("/runs", { a: "x y", b: null, c: "", d: 0 }), "/runs?a=x+y&d=0");
});

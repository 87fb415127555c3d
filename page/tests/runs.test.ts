import assert from "node:assert/strict";
import { test } from "node:test";
import type { Run } from "../src/api/types.ts";
import { parseRoute, formatRoute } from "../src/routing.ts";
import { filterRuns, nameApart, parseList, sortRuns, toggleInList } from "../src/runs/filter.ts";

function makeRun(name: string, values: Partial<Run> = {}): Run {
  return {
    id: name, name, place: `/runs/${name}`, phase: "Running", algorithm: "ppo", step: 1, steps: 2, reward: null,
    heldOut: null, gpus: null, cost: null, started: null, updated: null, seconds: null, ...values,
  };
}

test("a filter asks for every word, wherever it is", () => {
  const runs = [makeRun("sft", { algorithm: "sft" }), makeRun("kind"), makeRun("kinder", { phase: "Failed" })];
  assert.deepEqual(filterRuns(runs, "KIND failed").map(({ name }) => name), ["kinder"]);
  assert.equal(filterRuns(runs, "").length, 3);
});

test("runs of one name are told apart by their places", () => {
  const places = { a: "/runs/one/", b: "/runs/two", c: "/old/two", d: "/runs/three" };
  const runs = Object.entries(places).map(([id, place]) => makeRun(id, { name: id === "d" ? "other" : "job", place }));
  assert.deepEqual([...nameApart(runs)], [
    ["a", "job (one)"], ["b", "job (/runs/two)"], ["c", "job (/old/two)"], ["d", "other"],
  ]);
});

test("runs without a value are last in either direction", () => {
  const runs = [makeRun("none"), makeRun("low", { reward: 1 }), makeRun("high", { reward: 2 })];
  assert.deepEqual(sortRuns(runs, "reward", true).map(({ name }) => name), ["high", "low", "none"]);
  assert.deepEqual(sortRuns(runs, "reward", false).map(({ name }) => name), ["low", "high", "none"]);
});

test("a route is the same after it was written and read", () => {
  const route = parseRoute(formatRoute(["runs", "a/b ?"], { search: "x & y" }));
  assert.deepEqual(route, { parts: ["runs", "a/b ?"], query: { search: "x & y" } });
});

test("a list in an argument keeps commas of its entries", () => {
  assert.deepEqual(parseList(toggleInList(["a,b"], "c")), ["a,b", "c"]);
  assert.equal(toggleInList(["c"], "c"), "");
});

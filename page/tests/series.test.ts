import assert from "node:assert/strict";
import { test } from "node:test";
import { appendSeries } from "../src/api/series.ts";
import { joinLines, readValues } from "../src/chart/data.ts";

const BEFORE = { steps: [1, 2], elapsed: [3, 6], generation: 1, series: { loss: [0.5, 0.4] } };

test("new steps are appended, and a figure that they lack is null there", () => {
  const more = { steps: [3], elapsed: [9], generation: 1, series: { loss: [0.3] } };
  assert.deepEqual(appendSeries(BEFORE, more).series, { loss: [0.5, 0.4, 0.3] });
  assert.deepEqual(appendSeries(BEFORE, { ...more, series: {} }).series, { loss: [0.5, 0.4, null] });
});

test("without a new step the series stays the same object, so that nothing is drawn", () => {
  const nothing = { steps: [], elapsed: [], generation: 1, series: { loss: [] } };
  assert.equal(appendSeries(BEFORE, nothing), BEFORE);
});

test("lines with abscissas of their own are joined in order", () => {
  const joined = joinLines([
    { x: [1, 3], label: "a", values: [10, 30] },
    { x: [2, 3], label: "b", values: [2, null] },
  ]);
  assert.deepEqual(joined.x, [1, 2, 3]);
  assert.deepEqual(joined.lines.map(({ values }) => values), [[10, null, 30], [null, 2, null]]);
});

test("without a cursor each line has its last value", () => {
  const data = { x: [1, 2], lines: [{ label: "a", values: [1, null] }, { label: "b", values: [null, null] }] };
  assert.deepEqual(readValues(data, null), [1, null]);
  assert.deepEqual(readValues(data, 1), [null, null]);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Token } from "../src/api/types.ts";
import { listModes, shadeToken } from "../src/samples/shade.ts";

function makeToken(values: Partial<Token>): Token {
  return { text: "a", logprob: null, old: null, reference: null, entropy: null, ratio: null, kl: null, advantage: null, mask: true, version: null, ...values };
}

test("a ratio is clear at 1, full at a factor of two, and symmetric", () => {
  const shades = [1, 2, 0.5, 8].map((ratio) => shadeToken(makeToken({ ratio }), "ratio", []));
  assert.deepEqual(shades, [0, 1, -1, 1]);
});

test("an advantage is measured against the largest of the response", () => {
  const tokens = [makeToken({ advantage: -2 }), makeToken({ advantage: 1 })];
  assert.deepEqual(tokens.map((token) => shadeToken(token, "advantage", tokens)), [-1, 0.5]);
});

test("the newest weight version is clear and the oldest full", () => {
  const tokens = [3, 4, 5].map((version) => makeToken({ version }));
  assert.deepEqual(tokens.map((token) => shadeToken(token, "version", tokens)), [-1, -0.5, 0]);
});

test("only what the tokens have is offered", () => {
  assert.deepEqual(listModes([makeToken({ logprob: -1 })]), ["surprise", "mask"]);
  assert.deepEqual(listModes([makeToken({ advantage: 1 })]), ["advantage", "mask"]);
  assert.equal(shadeToken(makeToken({ ratio: 0 }), "ratio", []), null);
});

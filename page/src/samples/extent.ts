// What the samples and the histogram were chosen from, as a sentence.
import type { Scores } from "../api/types.ts";
import { formatCount } from "../format.ts";
import type { Extent } from "./paging.ts";

/** `shown`: samples on the page. */
export function describeExtent({ count, searched, total, whole, steps }: Extent, shown: number, isExport: boolean): string {
  const first = steps[0];
  const sentences = [];
  if (isExport && !whole) {
    sentences.push(`This export has the newest of the run’s ${countSamples(total)}.`);
  } else if (searched !== null) {
    sentences.push(`Searched ${formatCount(searched)} of ${countSamples(count)}: ${formatCount(shown)} found.`);
  } else {
    sentences.push(`${formatCount(shown)} of ${countSamples(count)}.`);
  }
  if (!whole && first !== undefined && !isExport) sentences.push(`Those before step ${formatCount(first)} are still being read, or left out.`);
  return sentences.join(" ");
}

export function describeScores({ steps, samples, unscored, whole }: Scores, search: string | undefined): string {
  const [first, last] = steps.map(formatCount);
  const where = first === last ? `step ${first}` : `steps ${first} to ${last}`;
  const parts = [countSamples(samples) + (search ? ` with “${search}”` : "")];
  if (unscored > 0) parts.push(`${formatCount(unscored)} without a score`);
  if (!whole) parts.push(search ? "older ones are not searched here" : "older ones are still being read, or left out");
  return `Scores of ${where}: ${parts.join("; ")}`;
}

function countSamples(count: number): string {
  return `${formatCount(count)} ${count === 1 ? "sample" : "samples"}`;
}

// The scores of a step as bars; each is a button that shows the samples of its bin.
import type { Scores } from "../api/types.ts";
import { formatNumber } from "../format.ts";

export interface Bin {
  low: number;
  high: number;
}

interface Props {
  scores: Scores;
  chosen: Bin | null;
  onChoose: (bin: Bin | null) => void;
}

export function Histogram({ scores, chosen, onChoose }: Props) {
  const most = Math.max(1, ...scores.counts);
  return (
    <div class="histogram" role="group" aria-label="Scores; choose a bin to see its samples">
      <div class="bins">
        {scores.counts.map((count, index) => {
          const low = scores.edges[index] ?? 0;
          const high = scores.edges[index + 1] ?? low;
          const isChosen = chosen !== null && chosen.low === low && chosen.high === high;
          const text = `${count} ${count === 1 ? "sample" : "samples"} from ${formatNumber(low)} to ${formatNumber(high)}`;
          return (
            <button
              key={index}
              type="button"
              aria-pressed={isChosen}
              aria-label={text}
              title={text}
              disabled={count === 0}
              onClick={() => onChoose(isChosen ? null : { low, high })}
            >
              <span class="bar" style={{ height: `${(100 * count) / most}%` }} />
            </button>
          );
        })}
      </div>
      <div class="edges" aria-hidden="true">
        <span>{formatNumber(scores.edges[0])}</span>
        <span>score</span>
        <span>{formatNumber(scores.edges.at(-1))}</span>
      </div>
    </div>
  );
}

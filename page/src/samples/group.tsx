// The responses to one prompt in one step, side by side, the best first.
import { useState } from "preact/hooks";
import { withQuery } from "../api/client.ts";
import { usePolled } from "../api/polled.ts";
import type { Sample, Samples } from "../api/types.ts";
import { formatNumber } from "../format.ts";
import { Problem, Scroll } from "../parts.tsx";
import type { Source } from "./paging.ts";

const MOST = 64;

export function Group({ source, sample }: { source: Source; sample: Sample }) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary>The group: all responses to this prompt in step {sample.step}</summary>
      {isOpen && <SideBySide source={source} sample={sample} />}
    </details>
  );
}

function SideBySide({ source, sample }: { source: Source; sample: Sample }) {
  const query = { group: sample.group, order: "best", limit: MOST };
  const { data, error } = usePolled<Samples>(withQuery(source.list, query), source.isFixed);
  if (error) return <Problem error={error} />;
  return (
    <Scroll label="Responses of the group">
      <ul class="group">
        {(data?.samples ?? []).map((other) => (
          <li key={other.id} aria-current={other.id === sample.id ? "true" : undefined}>
            <p class="number">
              {formatNumber(other.score)}
              <span class="advantage"> advantage {formatNumber(other.advantage)}</span>
            </p>
            <p class="text">{other.response}</p>
          </li>
        ))}
      </ul>
    </Scroll>
  );
}

// The turns of an episode: what the model generated, and what the environment and its tools replied.
import type { Turn } from "../api/types.ts";
import { formatNumber } from "../format.ts";

export function Turns({ turns }: { turns: readonly Turn[] }) {
  return (
    <ol class="turns" aria-label="Turns">
      {turns.map((turn, index) => (
        <li key={index} data-role={turn.role}>
          <span class="role">
            {turn.role}
            {turn.reward != null && ` · reward ${formatNumber(turn.reward)}`}
          </span>
          <p class="text">{turn.text}</p>
        </li>
      ))}
    </ol>
  );
}

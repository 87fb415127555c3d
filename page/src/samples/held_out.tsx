// One held-out prompt over time: its responses, step after step, the newest first.
import { useId, useState } from "preact/hooks";
import { usePolled } from "../api/polled.ts";
import type { HeldOutPrompt } from "../api/types.ts";
import { formatNumber } from "../format.ts";

const LONGEST = 80;

export function HeldOut({ run }: { run: string }) {
  const id = useId();
  const { data } = usePolled<{ prompts: HeldOutPrompt[] }>(`/runs/${encodeURIComponent(run)}/evaluations`);
  const [place, setPlace] = useState(0);
  const prompts = data?.prompts ?? [];
  const chosen = prompts[Math.min(place, prompts.length - 1)];
  if (!chosen) return null;
  return (
    <details class="held-out">
      <summary>
        Held-out prompts over time ({prompts.length})
      </summary>
      <div class="field">
        <label for={id}>Prompt</label>
        <select id={id} class="wide" value={String(place)} onChange={(event) => setPlace(Number(event.currentTarget.value))}>
          {prompts.map((each, index) => (
            <option key={index} value={String(index)}>
              {each.set}: {shorten(each.prompt)}
            </option>
          ))}
        </select>
      </div>
      <p class="text">{chosen.prompt}</p>
      <ol class="over-time" aria-label="Responses, the newest first">
        {chosen.responses.map((each) => (
          <li key={each.step}>
            <span class="step number">step {each.step}</span>
            <span class="score number">
              <span class="visually-hidden">score </span>
              {formatNumber(each.score)}
            </span>
            <span class="text">{each.response}</span>
          </li>
        ))}
      </ol>
    </details>
  );
}

function shorten(text: string): string {
  const line = text.replaceAll(/\s+/g, " ");
  return line.length > LONGEST ? `${line.slice(0, LONGEST)}…` : line;
}

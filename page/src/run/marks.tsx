// The marks of the curves as a list, the newest first.
import type { Mark } from "../api/types.ts";
import { formatTime } from "../format.ts";

export function Marks({ marks }: { marks: readonly Mark[] }) {
  if (marks.length === 0) return null;
  return (
    <details class="marks">
      <summary>
        {marks.length} {marks.length === 1 ? "mark" : "marks"} on the curves
      </summary>
      <ol>
        {marks.toReversed().map((mark, index) => (
          <li key={marks.length - index}>
            <span class="kind" data-kind={mark.kind}>
              {mark.kind}
            </span>
            <span class="number">step {mark.step}</span>
            <span>{mark.text}</span>
            <time class="number" dateTime={mark.time ?? undefined}>
              {formatTime(mark.time)}
            </time>
          </li>
        ))}
      </ol>
    </details>
  );
}

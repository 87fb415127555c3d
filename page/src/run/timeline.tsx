// The timeline of a step: a row for each process, what it did when, and the seconds in which it waited.
import { useId } from "preact/hooks";
import { withQuery } from "../api/client.ts";
import { useFetched } from "../api/polled.ts";
import { useRun } from "../api/runs.ts";
import type { Timeline } from "../api/types.ts";
import { formatName, formatSeconds } from "../format.ts";
import { Problem, Scroll, Section } from "../parts.tsx";
import { replaceQuery, type Route } from "../routing.ts";
import { Parts } from "./parts_of_steps.tsx";
import { findBubbles, groupSpans, isWait, type SpanRow } from "./spans.ts";
import { TraceButton } from "./trace.tsx";

const KINDS = 8;
const OTHER = "other";
const BUBBLES = 5;

export function TimelineView({ id, route }: { id: string; route: Route }) {
  const run = useRun(id);
  const step = Number(route.query["step"] ?? run?.step ?? 0);
  const path = step > 0 ? withQuery(`/runs/${encodeURIComponent(id)}/timeline`, { step }) : null;
  const { data, error } = useFetched<Timeline>(path);
  const field = useId();
  const go = (to: number): void => replaceQuery(route, { step: Math.max(1, to) });
  return (
    <>
      <div class="heading">
        <h1>Timeline of {run?.name ?? "…"}</h1>
        <div class="field stepper">
          <label for={field}>Step</label>
          <button type="button" aria-label="Step before" onClick={() => go(step - 1)}>
            ‹
          </button>
          <input id={field} type="number" min={1} value={step || ""} onChange={(event) => go(Number(event.currentTarget.value))} />
          <button type="button" aria-label="Next step" onClick={() => go(step + 1)}>
            ›
          </button>
        </div>
      </div>
      <Problem error={error} />
      {run && path === null && <p class="empty">No step yet, and so no times.</p>}
      {data && data.spans.length > 0 && <Spans timeline={data} />}
      {data?.recorded && <TraceButton id={id} step={step} />}
      {data?.recorded === false && <p class="hint">This step has no record: these are its parts, as the trainer measured them.</p>}
      {data && <Bubbles timeline={data} />}
      <Parts id={id} />
      {data && data.spans.length === 0 && <p class="empty">This step's record has no spans.</p>}
    </>
  );
}

function Spans({ timeline }: { timeline: Timeline }) {
  const { rows, length } = groupSpans(timeline);
  const names = [...new Set(timeline.spans.map(({ name }) => name))];
  return (
    <>
      <ul class="legend spans">
        {names.map((name) => (
          <li key={name}>
            <span class="box" data-kind={pickKind(name, names)} aria-hidden="true" />
            {formatName(name)}
          </li>
        ))}
      </ul>
      <Scroll label={`Timeline of step ${timeline.step}`}>
        <table class="timeline">
          <thead>
            <tr>
              <th scope="col">Who</th>
              <th scope="col">What, over {formatSeconds(length)}</th>
              <th scope="col" class="number">Busy</th>
              <th scope="col" class="number">Waited</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <Bars key={row.name} row={row} names={names} length={length} />
            ))}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}

function Bubbles({ timeline }: { timeline: Timeline }) {
  const bubbles = findBubbles(timeline.spans, BUBBLES);
  if (bubbles.length === 0) return null;
  return (
    <Section title="The longest bubbles">
      <ol class="bubbles">
        {bubbles.map((span) => (
          <li key={`${span.who} ${span.start}`}>
            <span class="number">{formatSeconds(span.end - span.start)}</span> {span.who}, {formatName(span.name)}, from second{" "}
            {span.start.toFixed(1)} on
          </li>
        ))}
      </ol>
    </Section>
  );
}

function pickKind(name: string, names: readonly string[]): string {
  if (isWait({ name })) return "wait";
  if (name === OTHER) return OTHER;
  const work = names.filter((each) => each !== OTHER && !isWait({ name: each }));
  return String(work.indexOf(name) % KINDS);
}

function Bars({ row, names, length }: { row: SpanRow; names: string[]; length: number }) {
  const share = (seconds: number): number => (length > 0 ? 1000 * (seconds / length) : 0);
  return (
    <tr>
      <th scope="row">{row.name}</th>
      <td>
        <svg viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true">
          <rect class="ground" width="1000" height="20" />
          {row.spans.map((span, index) => (
            <rect
              key={index}
              data-kind={pickKind(span.name, names)}
              x={share(span.start)}
              width={Math.max(1, share(span.end - span.start))}
              height="20"
            >
              <title>{`${formatName(span.name)}: ${formatSeconds(span.end - span.start)}`}</title>
            </rect>
          ))}
        </svg>
        <span class="visually-hidden">
          {row.spans.map((span) => `${formatName(span.name)} ${formatSeconds(span.end - span.start)}`).join(", ")}
        </span>
      </td>
      <td class="number">{formatSeconds(row.busy)}</td>
      <td class="number">{formatSeconds(row.idle)}</td>
    </tr>
  );
}

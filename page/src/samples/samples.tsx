// The samples of a run: newest, best or worst, of a step, with a text, or with scores of one bin.
import { useId, useState } from "preact/hooks";
import { withQuery } from "../api/client.ts";
import { usePolled } from "../api/polled.ts";
import { useRun } from "../api/runs.ts";
import type { Scores } from "../api/types.ts";
import { Problem } from "../parts.tsx";
import { replaceQuery, type Route } from "../routing.ts";
import { HeldOut } from "./held_out.tsx";
import { Histogram, type Bin } from "./histogram.tsx";
import { usePages, type Paged } from "./paging.ts";
import { SampleItem } from "./sample.tsx";

const ORDERS = ["newest", "best", "worst"];
const PAGE = 50;
const BINS = 20;

export function SamplesView({ id, route }: { id: string; route: Route }) {
  const run = useRun(id);
  const [opened, setOpened] = useState<string | null>(null);
  const { order = "newest", step, search, low, high, prompt } = route.query;
  const paged = usePages(id, { order, step, search, low, high, prompt, limit: PAGE }, opened !== null);
  const newest = paged.steps.at(-1) ?? paged.samples[0]?.step;
  const scores = usePolled<Scores>(
    step ?? newest ? withQuery(`/runs/${encodeURIComponent(id)}/scores`, { step: step ?? newest, bins: BINS }) : null,
  );
  const chosen = low !== undefined && high !== undefined ? { low: Number(low), high: Number(high) } : null;
  const choose = (bin: Bin | null): void =>
    replaceQuery(route, { low: bin?.low ?? null, high: bin?.high ?? null, step: step ?? newest ?? null });
  return (
    <>
      <div class="heading">
        <h1>Samples of {run?.name ?? "…"}</h1>
      </div>
      <Controls route={route} steps={paged.steps} />
      {scores.data && scores.data.counts.length > 0 && (
        <div class="scores">
          <h2>Scores of step {step ?? newest}</h2>
          <Histogram scores={scores.data} chosen={chosen} onChoose={choose} />
        </div>
      )}
      <HeldOut run={id} />
      <Problem error={paged.error} />
      <List id={id} paged={paged} opened={opened} onOpen={setOpened} />
    </>
  );
}

interface ListProps {
  id: string;
  paged: Paged;
  opened: string | null;
  onOpen: (id: string | null) => void;
}

function List({ id, paged, opened, onOpen }: ListProps) {
  return (
    <section aria-label="Samples">
      {paged.hasNewer && (
        <button type="button" class="newer" onClick={paged.showNewer}>
          Show newer samples
        </button>
      )}
      {paged.samples.length === 0 && !paged.error && <p class="empty">No sample.</p>}
      <ol class="samples">
        {paged.samples.map((sample) => (
          <SampleItem
            key={sample.id}
            run={id}
            sample={sample}
            isOpen={opened === sample.id}
            onToggle={() => onOpen(opened === sample.id ? null : sample.id)}
          />
        ))}
      </ol>
      {paged.hasOlder && (
        <button type="button" onClick={paged.showOlder}>
          More samples
        </button>
      )}
    </section>
  );
}

function Controls({ route, steps }: { route: Route; steps: readonly number[] }) {
  const id = useId();
  const { order = "newest", step = "", search = "", prompt } = route.query;
  return (
    <form class="controls" role="search" onSubmit={(event) => event.preventDefault()}>
      <fieldset class="choice">
        <legend>Order</legend>
        {ORDERS.map((other) => (
          <label key={other}>
            <input type="radio" name="order" checked={order === other} onChange={() => replaceQuery(route, { order: other })} />
            {other}
          </label>
        ))}
      </fieldset>
      <div class="field">
        <label for={`${id}-step`}>Step</label>
        <select
          id={`${id}-step`}
          value={step}
          onChange={(event) => replaceQuery(route, { step: event.currentTarget.value, low: null, high: null })}
        >
          <option value="">all</option>
          {steps.toReversed().map((other) => (
            <option key={other} value={other}>
              {other}
            </option>
          ))}
        </select>
      </div>
      <div class="field">
        <label for={`${id}-search`}>Text</label>
        <input
          id={`${id}-search`}
          type="search"
          placeholder="in prompts and responses"
          value={search}
          onInput={(event) => replaceQuery(route, { search: event.currentTarget.value })}
        />
      </div>
      {prompt && (
        <button type="button" onClick={() => replaceQuery(route, { prompt: null })}>
          Of prompt {prompt} only <span aria-hidden="true">×</span>
          <span class="visually-hidden">; show all again</span>
        </button>
      )}
    </form>
  );
}

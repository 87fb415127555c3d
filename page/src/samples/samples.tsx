// The samples of a run: newest, best or worst, of a step, with a text, or with scores of one bin.
import { useState } from "preact/hooks";
import { isExport, withQuery } from "../api/client.ts";
import { usePolled } from "../api/polled.ts";
import { useRun } from "../api/runs.ts";
import type { Samples, Scores } from "../api/types.ts";
import { Problem } from "../parts.tsx";
import { replaceQuery, type Route } from "../routing.ts";
import { Controls, isOfEpisode } from "./controls.tsx";
import { describeExtent, describeScores } from "./extent.ts";
import { HeldOut } from "./held_out.tsx";
import { Histogram, type Bin } from "./histogram.tsx";
import { pickSource, usePages, type Paged, type Source } from "./paging.ts";
import { SampleItem } from "./sample.tsx";

const PAGE = 50;
const BINS = 20;

export function SamplesView({ id, route }: { id: string; route: Route }) {
  const run = useRun(id);
  const [opened, setOpened] = useState<string | null>(null);
  const { order = "newest", step, search, low, high, prompt } = route.query;
  const { kept, whole } = useSteps(id);
  const isWhole = isOfEpisode(route.query, kept, whole);
  const source = pickSource(id, isWhole ? step : undefined);
  const paged = usePages(source, { order, step, search, low, high, prompt, limit: PAGE }, opened !== null);
  const newest = kept?.at(-1) ?? paged.steps.at(-1) ?? paged.samples[0]?.step;
  const chooses = isExport ? {} : { search, prompt }; // an export has the scores of whole steps
  const of = step ?? (Object.values(chooses).some(Boolean) ? undefined : newest);
  const scores = usePolled<Scores>(
    newest === undefined && of === undefined
      ? null
      : withQuery(source.scores, { step: of, bins: BINS, ...chooses }),
    source.isFixed,
  );
  const chosen = low !== undefined && high !== undefined ? { low: Number(low), high: Number(high) } : null;
  const choose = (bin: Bin | null): void =>
    replaceQuery(route, { low: bin?.low ?? null, high: bin?.high ?? null, step: of ?? null });
  return (
    <>
      <div class="heading">
        <h1>Samples of {run?.name ?? "…"}</h1>
      </div>
      <Controls route={route} kept={kept} whole={whole} isWhole={isWhole} />
      {scores.data && scores.data.counts.length > 0 && (
        <div class="scores">
          <h2>{describeScores(scores.data, isExport ? undefined : search)}</h2>
          <Histogram scores={scores.data} chosen={chosen} onChoose={choose} />
        </div>
      )}
      <HeldOut run={id} />
      <Problem error={paged.error} />
      <List id={id} source={source} paged={paged} opened={opened} onOpen={setOpened} />
    </>
  );
}

/** The steps of which samples are kept, and those of which a checkpoint has all responses. */
function useSteps(id: string): { kept: number[] | null; whole: number[] } {
  const base = `/runs/${encodeURIComponent(id)}`;
  const { data: samples } = usePolled<Samples>(withQuery(`${base}/samples`, { limit: 1 }));
  const { data: episodes } = usePolled<{ steps: number[] }>(`${base}/episodes`);
  return { kept: samples?.steps ?? null, whole: episodes?.steps ?? [] };
}

interface ListProps {
  id: string;
  source: Source;
  paged: Paged;
  opened: string | null;
  onOpen: (id: string | null) => void;
}

function List({ id, source, paged, opened, onOpen }: ListProps) {
  return (
    <section aria-label="Samples">
      {paged.hasNewer && (
        <button type="button" class="newer" onClick={paged.showNewer}>
          Show newer samples
        </button>
      )}
      {paged.extent && paged.extent.total > 0 && (
        <p class="hint" role="status">
          {describeExtent(paged.extent, paged.samples.length, isExport)}
        </p>
      )}
      {paged.samples.length === 0 && !paged.error && <p class="empty">{paged.extent ? "No sample." : "Reading the samples…"}</p>}
      <ol class="samples">
        {paged.samples.map((sample) => (
          <SampleItem
            key={sample.id}
            run={id}
            source={source}
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

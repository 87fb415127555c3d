// A sample: its score, prompt and response as text; opened, its tokens, the parts of its reward and its group.
import type { Sample } from "../api/types.ts";
import { flatten, formatName, formatNested, formatNumber } from "../format.ts";
import { Fact } from "../parts.tsx";
import { formatRoute } from "../routing.ts";
import { Group } from "./group.tsx";
import type { Source } from "./paging.ts";
import { Tokens } from "./tokens.tsx";
import { Turns } from "./turns.tsx";

interface Props {
  run: string;
  source: Source;
  sample: Sample;
  isOpen: boolean;
  onToggle: () => void;
}

export function SampleItem({ run, source, sample, isOpen, onToggle }: Props) {
  return (
    <li class="sample" data-open={isOpen}>
      <button type="button" class="head" aria-expanded={isOpen} onClick={onToggle}>
        <span class="score number">
          <span class="visually-hidden">score </span>
          {formatNumber(sample.score)}
        </span>
        <span class="words">
          <span class="prompt">{sample.prompt}</span>
          <span class="response">{sample.response}</span>
        </span>
        <span class="step number">step {sample.step}</span>
      </button>
      {isOpen && <Opened run={run} source={source} sample={sample} />}
    </li>
  );
}

function Opened({ run, source, sample }: { run: string; source: Source; sample: Sample }) {
  const parts = flatten(sample.parts).filter(([name]) => name !== "");
  return (
    <div class="opened">
      <dl class="facts">
        {parts.map(([name, value]) => (
          <Fact key={name} name={formatName(name)}>
            {formatNested(value)}
          </Fact>
        ))}
        <Fact name="Advantage">{formatNumber(sample.advantage)}</Fact>
        <Fact name="Weight version">{formatNumber(sample.version)}</Fact>
        <Fact name="Tokens">
          {formatNumber(sample.tokens)}
          {sample.finished === false && ", truncated"}
        </Fact>
      </dl>
      <Whole sample={sample} />
      <Tokens source={source} sample={sample} />
      <Group source={source} sample={sample} />
      <p>
        <a href={formatRoute(["runs", run, "samples"], { prompt: sample.promptId })}>This prompt in all steps</a>
      </p>
    </div>
  );
}

function Whole({ sample }: { sample: Sample }) {
  return (
    <div class="whole">
      <h3>Prompt</h3>
      <p class="text">{sample.prompt}</p>
      <h3>Response</h3>
      {sample.turns.length > 0 ? <Turns turns={sample.turns} /> : <p class="text">{sample.response}</p>}
    </div>
  );
}

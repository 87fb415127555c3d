// What chooses samples: their order, a step, a text, a prompt.
import { useEffect, useId, useState } from "preact/hooks";
import { replaceQuery, type Route } from "../routing.ts";

const ORDERS = ["newest", "oldest", "best", "worst"];
/** Of steps in a list; of more the number is typed. */
const MOST_LISTED = 500;
/** After the last key: each search reads a part of the samples. */
const PAUSE_MS = 300;

/** Steps that a hint names. */
const MOST_NAMED = 5;

/** True if all responses of the chosen step are shown: where they are asked for, or no others of it are there. */
export function isOfEpisode({ step, of }: Record<string, string>, kept: readonly number[] | null, whole: readonly number[]): boolean {
  if (step === undefined || !whole.includes(Number(step))) return false;
  return of === "all" || (kept !== null && !kept.includes(Number(step)));
}

interface Props {
  route: Route;
  /** Steps of which samples are kept; null until they are known. */
  kept: readonly number[] | null;
  /** Steps of which a checkpoint has all responses. */
  whole: readonly number[];
  isWhole: boolean;
}

export function Controls({ route, kept, whole, isWhole }: Props) {
  const { order = "newest", step = "", search = "", prompt } = route.query;
  const chooseStep = (value: string): void => replaceQuery(route, { step: value, low: null, high: null, of: null });
  const chooseWhole = (isAll: boolean): void => replaceQuery(route, { of: isAll ? "all" : null, low: null, high: null });
  const steps = [...new Set([...(kept ?? []), ...whole])].toSorted((a, b) => a - b);
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
      <StepField steps={steps} step={step} onChoose={chooseStep} />
      {whole.includes(Number(step)) && (
        <label class="check">
          <input
            type="checkbox"
            checked={isWhole}
            disabled={!kept?.includes(Number(step))}
            onChange={(event) => chooseWhole(event.currentTarget.checked)}
          />
          all responses of the step
        </label>
      )}
      <TextField text={search} onChange={(text) => replaceQuery(route, { search: text })} />
      {prompt && (
        <button type="button" onClick={() => replaceQuery(route, { prompt: null })}>
          Of prompt {prompt} only <span aria-hidden="true">×</span>
          <span class="visually-hidden">; show all again</span>
        </button>
      )}
      {step === "" && whole.length > 0 && <p class="hint">Checkpoints have all responses of {nameSteps(whole)}: choose {whole.length === 1 ? "it" : "one"} to see them.</p>}
    </form>
  );
}

function nameSteps(steps: readonly number[]): string {
  const named = steps.slice(-MOST_NAMED).join(", ");
  const others = steps.length > MOST_NAMED ? ` and ${steps.length - MOST_NAMED} earlier ones` : "";
  return `${steps.length === 1 ? "step" : "steps"} ${named}${others}`;
}

interface StepProps {
  steps: readonly number[];
  step: string;
  onChoose: (step: string) => void;
}

function StepField({ steps, step, onChoose }: StepProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>Step</label>
      {steps.length > MOST_LISTED ? (
        <input
          id={id}
          type="number"
          min={steps[0]}
          max={steps.at(-1)}
          placeholder="all"
          value={step}
          onChange={(event) => onChoose(event.currentTarget.value)}
        />
      ) : (
        <select id={id} value={step} onChange={(event) => onChoose(event.currentTarget.value)}>
          <option value="">all</option>
          {steps.toReversed().map((other) => (
            <option key={other} value={other}>
              {other}
            </option>
          ))}
        </select>
      )}
    </div>
  );
}

function TextField({ text, onChange }: { text: string; onChange: (text: string) => void }) {
  const id = useId();
  const [typed, setTyped] = useState(text);
  useEffect(() => setTyped(text), [text]);
  useEffect(() => {
    if (typed === text) return;
    const timer = setTimeout(() => onChange(typed), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  return (
    <div class="field">
      <label for={id}>Text</label>
      <input
        id={id}
        type="search"
        placeholder="in prompts and responses"
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
    </div>
  );
}

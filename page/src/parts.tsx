// Small parts that several views use: problems, a pair of name and value, text to copy, the picker of figures.
import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import type { Refused } from "./api/client.ts";
import type { Metric } from "./api/types.ts";

export function Problem({ error }: { error: Refused | null }) {
  if (error === null) return null;
  const text = error.status === 401 && !error.asksToken ? "Open the address that rlhf printed: it has the token that this page needs." : error.message;
  return (
    <p class="problem" role="status">
      {text}
    </p>
  );
}

export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div class="fact">
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

export function Phase({ phase }: { phase: string }) {
  return (
    <span class="phase" data-phase={phase.toLowerCase()}>
      {phase}
    </span>
  );
}

export function Section({ title, children }: { title: string; children: ComponentChildren }) {
  const id = useId();
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      {children}
    </section>
  );
}

/** What may be wider than the page, and is scrolled by keys too. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      {children}
    </div>
  );
}

export function Copyable({ name, text }: { name: string; text: string }) {
  return (
    <div class="copyable">
      <code tabIndex={0}>{text}</code>
      <CopyButton label={`Copy the command to ${name}`} caption="Copy" text={text} />
    </div>
  );
}

interface CopyProps {
  label: string;
  caption: string;
  text: string;
}

export function CopyButton({ label, caption, text }: CopyProps) {
  const [result, setResult] = useState("");
  const copy = (): void => {
    navigator.clipboard.writeText(text).then(
      () => setResult("Copied"),
      () => setResult("Not allowed here: select it and copy it by hand"),
    );
  };
  return (
    <>
      <button type="button" aria-label={label} title={text} onClick={copy}>
        {caption}
      </button>
      <span role="status">{result}</span>
    </>
  );
}

interface PickerProps {
  metrics: readonly Metric[];
  label: string;
  onPick: (name: string) => void;
}

/** A search over all figures of a run; what is chosen is drawn. */
export function MetricPicker({ metrics, label, onPick }: PickerProps) {
  const id = useId();
  const [text, setText] = useState("");
  const pick = (value: string): void => {
    const isKnown = metrics.some(({ name }) => name === value);
    setText(isKnown ? "" : value);
    if (isKnown) onPick(value);
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="search"
        list={`${id}-names`}
        placeholder={`${metrics.length} figures`}
        autocomplete="off"
        value={text}
        onInput={(event) => pick(event.currentTarget.value)}
      />
      <datalist id={`${id}-names`}>
        {metrics.map(({ name, help }) => (
          <option key={name} value={name}>
            {help}
          </option>
        ))}
      </datalist>
    </div>
  );
}

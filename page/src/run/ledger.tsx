// The ledger of prompts, and why some were dropped.
import type { Mark, Nested } from "../api/types.ts";
import { Section } from "../parts.tsx";
import { List } from "./roles.tsx";

/** Begin of a mark of a dropped prompt. */
const DROPPED = "giving up on ";

export function Ledger({ ledger, marks }: { ledger: Record<string, Nested>; marks: readonly Mark[] }) {
  const reasons = marks.filter(({ text }) => text.startsWith(DROPPED));
  return (
    <Section title="Ledger of rollouts">
      <List of={ledger} empty="This run has none." />
      {reasons.length > 0 && (
        <details>
          <summary>Why prompts were dropped ({reasons.length})</summary>
          <ul>
            {reasons.map(({ step, text }, index) => (
              <li key={index}>
                step {step}: {text}
              </li>
            ))}
          </ul>
        </details>
      )}
    </Section>
  );
}

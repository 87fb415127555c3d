// The generators, which weights they serve, and what waits for them.
import type { Nested } from "../api/types.ts";
import { formatNumber, formatTime } from "../format.ts";
import { Fact, Section } from "../parts.tsx";
import { Records } from "./roles.tsx";

const FACTS: Record<string, string> = {
  weightVersion: "Weight version",
  staleness: "Staleness, in versions",
  stalenessBound: "Its limit",
  queue: "Queue: prompts without responses",
  unscored: "Responses without a reward yet",
};

/** Without its role, which is that of all, and the id of its process. */
function nameColumns({ name = null, ready = null, weightVersion = null, epoch = null, lastSyncTime }: Record<string, Nested>): Record<string, Nested> {
  const since = typeof lastSyncTime === "string" ? formatTime(lastSyncTime) : null;
  return { generator: name, ready, "weight version": weightVersion, "membership epoch": epoch, "weights since": since };
}

interface Props {
  generators: Record<string, Nested>[];
  serving: Record<string, number> | undefined;
}

export function Generators({ generators, serving = {} }: Props) {
  const facts = Object.entries(FACTS).filter(([name]) => serving[name] !== undefined);
  if (generators.length === 0 && facts.length === 0) return null;
  return (
    <Section title="Generators">
      {facts.length > 0 && (
        <dl class="facts">
          {facts.map(([name, title]) => (
            <Fact key={name} name={title}>
              {formatNumber(serving[name])}
            </Fact>
          ))}
        </dl>
      )}
      {generators.length > 0 && <Records label="Table of generators" rows={generators.map(nameColumns)} />}
    </Section>
  );
}

// What needs a reader's attention, in the server's order: liveness, then what is suspicious, then where time goes.
import type { Alarm } from "../api/types.ts";
import { Section } from "../parts.tsx";

export function Alarms({ alarms }: { alarms: readonly Alarm[] }) {
  if (alarms.length === 0) return <p class="hint">No alarms.</p>;
  return (
    <Section title="Alarms">
      <ul class="alarms">
        {alarms.map((alarm) => (
          <li key={`${alarm.level} ${alarm.title}`} data-level={alarm.level}>
            <span class="level">{alarm.level}</span>
            <div>
              <strong>{alarm.title}</strong>
              <p>{alarm.text}</p>
              {alarm.rule && (
                <p class="rule">
                  A rule of spec.health that acts on it: <code>{alarm.rule}</code>
                </p>
              )}
            </div>
          </li>
        ))}
      </ul>
    </Section>
  );
}

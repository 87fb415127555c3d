// The seconds of a step and of its phases, as they were predicted before the start and as they are.
import type { Usage } from "../api/types.ts";
import { formatSeconds } from "../format.ts";
import { Scroll, Section } from "../parts.tsx";
import { formatOff, listRows } from "./seconds.ts";

export function Predicted({ usage }: { usage: Usage | undefined }) {
  if (!usage?.predicted) return null;
  return (
    <Section title="Predicted and measured">
      <Scroll label="Predicted and measured seconds">
        <table>
          <thead>
            <tr>
              <th scope="col">Part of a step</th>
              <th scope="col" class="number">Predicted</th>
              <th scope="col" class="number">Measured</th>
              <th scope="col" class="number">Off</th>
            </tr>
          </thead>
          <tbody>
            {listRows(usage).map((row) => (
              <tr key={row.name}>
                <th scope="row">{row.name}</th>
                <td class="number">{formatSeconds(row.predicted)}</td>
                <td class="number">{formatSeconds(row.measured)}</td>
                <td class="number">{formatOff(row)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      <p class="hint">
        At the rates of <code>{usage.predicted.by}</code>, before the start.
      </p>
    </Section>
  );
}

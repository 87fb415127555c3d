// The seconds of a step and the memory of each role, as they were predicted before the start and as they are.
import type { Usage } from "../api/types.ts";
import { formatSeconds } from "../format.ts";
import { Scroll, Section } from "../parts.tsx";
import { formatOff, listMemory, listRows } from "./seconds.ts";

export function Predicted({ usage }: { usage: Usage | undefined }) {
  if (!usage) return null;
  return (
    <Section title="Predicted and measured">
      <Seconds usage={usage} />
      {usage.predicted ? (
        <p class="hint">
          At the rates of <code>{usage.predicted.by}</code>, before the start.
        </p>
      ) : (
        usage.unpredicted && <p class="hint">No seconds were predicted: {usage.unpredicted}.</p>
      )}
      <Memory usage={usage} />
    </Section>
  );
}

function Seconds({ usage }: { usage: Usage }) {
  const rows = listRows(usage);
  if (rows.length === 0) return null;
  return (
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
          {rows.map((row) => (
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
  );
}

function Memory({ usage }: { usage: Usage }) {
  const rows = listMemory(usage);
  if (rows.length === 0) return <p class="hint">No memory was predicted: the sizes of the models were not known (spec.model.parameters).</p>;
  return (
    <>
      <Scroll label="Predicted and measured memory">
        <table>
          <thead>
            <tr>
              <th scope="col">Memory of a GPU</th>
              <th scope="col">Predicted</th>
              <th scope="col" class="number">Measured</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ role, predicted, measured }) => (
              <tr key={role}>
                <th scope="row">{role}</th>
                <td>{predicted}</td>
                <td class="number">{measured}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      <p class="hint">Measured is the most that the trainer’s first rank had allocated, on a GPU alone.</p>
    </>
  );
}

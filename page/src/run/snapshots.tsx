// The snapshots of a run, and the commands that go on from one; the page itself changes nothing.
import type { Checkpoint } from "../api/types.ts";
import { flatten, formatBytes, formatName, formatNested, formatNumber, formatTime } from "../format.ts";
import { Copyable, Scroll, Section } from "../parts.tsx";

interface Props {
  checkpoints: readonly Checkpoint[];
  commands: Record<string, string>;
}

export function Snapshots({ checkpoints, commands }: Props) {
  return (
    <Section title="Snapshots">
      {checkpoints.length === 0 && <p class="empty">No snapshot yet.</p>}
      {checkpoints.length > 0 && (
        <Scroll label="Table of snapshots">
          <table>
            <thead>
              <tr>
                <th scope="col" class="number">Step</th>
                <th scope="col" class="number">Written</th>
                <th scope="col" class="number">Size</th>
                <th scope="col">Evaluation</th>
              </tr>
            </thead>
            <tbody>
              {checkpoints.toReversed().map((checkpoint) => (
                <tr key={checkpoint.step}>
                  <th scope="row" class="number">{formatNumber(checkpoint.step)}</th>
                  <td class="number">{formatTime(checkpoint.created)}</td>
                  <td class="number">{formatBytes(checkpoint.bytes)}</td>
                  <td>{formatEvaluation(checkpoint)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      <dl class="commands">
        {Object.entries(commands).map(([name, text]) => (
          <div key={name}>
            <dt>{formatName(name)}</dt>
            <dd>
              <Copyable name={name} text={text} />
            </dd>
          </div>
        ))}
      </dl>
    </Section>
  );
}

function formatEvaluation({ evaluation }: Checkpoint): string {
  const parts = flatten(evaluation).map(([name, value]) => `${formatName(name)} ${formatNested(value)}`.trim());
  return parts.join(", ");
}

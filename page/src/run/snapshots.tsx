// The snapshots of a run, the newest first, and the commands that go on from one; the page itself changes nothing.
import type { Checkpoint, Nested } from "../api/types.ts";
import { flatten, formatBytes, formatName, formatNested, formatNumber, formatTime } from "../format.ts";
import { Copyable, CopyButton, Scroll, Section } from "../parts.tsx";

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
                <th scope="col" class="number">
                  Step
                </th>
                <th scope="col">Written</th>
                <th scope="col" class="number">
                  Size
                </th>
                <th scope="col">Held-out</th>
                <th scope="col">Copy the command to</th>
              </tr>
            </thead>
            <tbody>
              {checkpoints.toSorted((a, b) => b.step - a.step).map((checkpoint) => (
                <Row key={checkpoint.step} checkpoint={checkpoint} />
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

function Row({ checkpoint }: { checkpoint: Checkpoint }) {
  const { step, created, bytes, good, evaluation } = checkpoint;
  return (
    <tr>
      <th scope="row" class="number">
        {formatNumber(step)}
      </th>
      <td class="time">
        {formatTime(created)}
        {!good && <span class="hint"> · not known to be good</span>}
      </td>
      <td class="number">{formatBytes(bytes)}</td>
      <td>{formatEvaluation(evaluation)}</td>
      <td>
        <span class="buttons">
          <CopyButton label={`Copy the command to clone step ${step}`} caption="clone" text={checkpoint.clone} />
          <CopyButton label={`Copy the command to export step ${step}`} caption="export" text={checkpoint.export} />
        </span>
      </td>
    </tr>
  );
}

function formatEvaluation(evaluation: Nested | undefined): string {
  const parts = flatten(evaluation ?? null).map(([name, value]) => `${formatName(name)} ${formatNested(value)}`.trim());
  return parts.join(", ");
}

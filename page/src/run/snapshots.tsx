// The snapshots of a run as a tree, the newest first, with the starts and clones between them, and the commands that go
// on from one; the page itself changes nothing.
import { usePolled } from "../api/polled.ts";
import type { Checkpoint, Clones, Nested } from "../api/types.ts";
import { flatten, formatBytes, formatName, formatNested, formatNumber, formatTime } from "../format.ts";
import { Copyable, CopyButton, Phase, Scroll, Section } from "../parts.tsx";
import { formatRoute } from "../routing.ts";
import { growTree, type Branch } from "./tree.ts";

interface Props {
  id: string;
  checkpoints: readonly Checkpoint[];
  problem: string;
  commands: Record<string, string>;
}

export function Snapshots({ id, checkpoints, problem, commands }: Props) {
  const { data } = usePolled<Clones>(`/runs/${encodeURIComponent(id)}/clones`);
  const branches = growTree(checkpoints, data ?? { origin: null, clones: [] });
  return (
    <Section title="Snapshots">
      {problem ? <p class="problem">The store cannot be read: {problem}</p> : checkpoints.length === 0 && <p class="empty">No snapshot yet.</p>}
      {branches.length > 0 && (
        <Scroll label="Tree of snapshots">
          <table class="tree">
            <thead>
              <tr>
                <th scope="col">Step</th>
                <th scope="col">Written</th>
                <th scope="col" class="number">
                  Size
                </th>
                <th scope="col">Held-out</th>
                <th scope="col">Copy the command to</th>
              </tr>
            </thead>
            <tbody>
              {branches.map((branch, index) => (
                <Row key={index} branch={branch} resume={index === 0 ? commands["resume"] : undefined} />
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

function Row({ branch, resume }: { branch: Branch; resume: string | undefined }) {
  if (branch.kind === "snapshot") return <Snapshot checkpoint={branch.checkpoint} resume={resume} />;
  if (branch.kind === "start") {
    return (
      <tr class="between">
        <th scope="row" colSpan={5}>
          <span aria-hidden="true">│ </span>the trainer was started again, and went on from {branch.from === null ? "the begin" : `step ${branch.from}`}
        </th>
      </tr>
    );
  }
  const { run, step } = branch;
  return (
    <tr class="between">
      <th scope="row" colSpan={5}>
        <span aria-hidden="true">{branch.kind === "clone" ? "├─ " : "╵ "}</span>
        {branch.kind === "clone" ? `clone of step ${step}: ` : `begun from step ${step} of `}
        {run === null ? <code>{branch.store}</code> : <a href={formatRoute(["runs", run.id])}>{run.name}</a>}
        {run !== null && (
          <>
            {", "}at step {formatNumber(run.step)}, held-out {formatNumber(run.heldOut)} <Phase phase={run.phase} />
          </>
        )}
      </th>
    </tr>
  );
}

function Snapshot({ checkpoint, resume }: { checkpoint: Checkpoint; resume: string | undefined }) {
  const { step, created, bytes, good, evaluation, best } = checkpoint;
  return (
    <tr>
      <th scope="row">
        <span aria-hidden="true">● </span>
        {formatNumber(step)}
        {best && <span class="badge">best</span>}
      </th>
      <td class="time">
        {formatTime(created)}
        {!good && <span class="hint"> · not known to be good</span>}
      </td>
      <td class="number">{formatBytes(bytes)}</td>
      <td>{formatEvaluation(evaluation)}</td>
      <td>
        <span class="buttons">
          {resume && <CopyButton label={`Copy the command to resume from step ${step}`} caption="resume" text={resume} />}
          <CopyButton label={`Copy the command to clone step ${step}`} caption="clone" text={checkpoint.clone} />
          {checkpoint.export && (
            <CopyButton label={`Copy the command to export step ${step}`} caption="export" text={checkpoint.export} />
          )}
          {checkpoint.repeat && (
            <CopyButton label={`Copy the command to verify step ${step} by repeating it`} caption="verify" text={checkpoint.repeat} />
          )}
        </span>
      </td>
    </tr>
  );
}

function formatEvaluation(evaluation: Nested | undefined): string {
  const parts = flatten(evaluation ?? null).map(([name, value]) => `${formatName(name)} ${formatNested(value)}`.trim());
  return parts.join(", ");
}

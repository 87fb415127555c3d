// The end of a process's log, of all its starts or of one, read when a reader chooses it.
import { useId, useState } from "preact/hooks";
import { withQuery } from "../api/client.ts";
import { usePolled } from "../api/polled.ts";
import type { Log, LogFile } from "../api/types.ts";
import { formatBytes } from "../format.ts";
import { Problem } from "../parts.tsx";

export function Logs({ id }: { id: string }) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary>Logs</summary>
      {isOpen && <Files path={`/runs/${encodeURIComponent(id)}/logs`} />}
    </details>
  );
}

function Files({ path }: { path: string }) {
  const field = useId();
  const [chosen, setChosen] = useState("");
  const [attempt, setAttempt] = useState(0);
  const { data, error } = usePolled<{ files: LogFile[] }>(path);
  const files = data?.files ?? [];
  const name = chosen || files.find(({ role }) => role === "trainer")?.name || files[0]?.name;
  const log = usePolled<Log>(name ? withQuery(`${path}/${encodeURIComponent(name)}`, { attempt: attempt || null }) : null);
  if (error) return <Problem error={error} />;
  if (data !== null && files.length === 0) return <p class="empty">This run has left no logs.</p>;
  const choose = (next: string): void => {
    setChosen(next);
    setAttempt(0);
  };
  return (
    <>
      <div class="controls">
        <div class="field">
          <label for={`${field}-file`}>Process</label>
          <select id={`${field}-file`} class="wide" value={name ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
            {files.map((file) => (
              <option key={file.name} value={file.name}>
                {file.name}, {formatBytes(file.bytes)}
              </option>
            ))}
          </select>
        </div>
        <div class="field">
          <label for={`${field}-start`}>Start</label>
          <select id={`${field}-start`} value={attempt} onChange={(event) => setAttempt(Number(event.currentTarget.value))}>
            <option value={0}>all</option>
            {Array.from({ length: log.data?.attempts ?? 0 }, (_, place) => (
              <option key={place} value={place + 1}>
                {place + 1}
              </option>
            ))}
          </select>
        </div>
      </div>
      <Problem error={log.error} />
      {log.data && (
        <pre class="log" tabIndex={0} role="region" aria-label={`The end of ${name ?? "the log"}`}>
          {log.data.text}
        </pre>
      )}
    </>
  );
}

// Jobs of a cluster with the columns of `kubectl get rlhfjobs`.
import type { JobColumn, Run } from "../api/types.ts";
import { Phase, Scroll } from "../parts.tsx";
import { formatRoute } from "../routing.ts";

interface Props {
  columns: JobColumn[];
  jobs: Run[];
  selected: string[];
  onSelect: (id: string) => void;
}

export function JobsTable({ columns, jobs, selected, onSelect }: Props) {
  return (
    <Scroll label="Table of jobs">
      <table class="runs">
        <thead>
          <tr>
            <th scope="col">
              <span class="visually-hidden">Selected</span>
            </th>
            {columns.map(({ name, isNumber }) => (
              <th key={name} scope="col" class={isNumber ? "number" : undefined}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {jobs.map((job) => (
            <tr key={job.id} data-selected={selected.includes(job.id)}>
              <td>
                <input
                  type="checkbox"
                  aria-label={`Select ${job.name}`}
                  checked={selected.includes(job.id)}
                  onChange={() => onSelect(job.id)}
                />
              </td>
              {columns.map((column, place) => (
                <Cell key={column.name} column={column} job={job} text={job.cells?.[place] ?? ""} />
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Cell({ column, job, text }: { column: JobColumn; job: Run; text: string }) {
  if (column.name === "Name") {
    return (
      <th scope="row">
        <a href={formatRoute(["runs", job.id])}>{text}</a>
      </th>
    );
  }
  return <td class={column.isNumber ? "number" : undefined}>{column.name === "Phase" ? <Phase phase={text} /> : text}</td>;
}

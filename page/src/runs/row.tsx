// A run as a row: what it is, how far it is, and its latest figures.
import type { Run } from "../api/types.ts";
import { formatNumber, formatSeconds, formatTime } from "../format.ts";
import { Phase } from "../parts.tsx";
import { formatRoute } from "../routing.ts";
import { formatProgress } from "./filter.ts";

interface Props {
  run: Run;
  /** True if the table has a column of costs. */
  hasCost: boolean;
  isSelected: boolean;
  onSelect: () => void;
}

export function RunRow({ run, hasCost, isSelected, onSelect }: Props) {
  return (
    <tr data-selected={isSelected}>
      <td>
        <input type="checkbox" aria-label={`Select ${run.name}`} checked={isSelected} onChange={onSelect} />
      </td>
      <th scope="row">
        <a href={formatRoute(["runs", run.id])}>{run.name}</a>
        <span class="place" title={run.place}>
          {[run.algorithm, run.place].filter(Boolean).join(" · ")}
        </span>
      </th>
      <td>
        <Phase phase={run.phase} />
      </td>
      <td class="number">
        {formatProgress(run)}
        {run.step !== null && run.steps !== null && run.steps > 0 && (
          <progress value={run.step} max={run.steps} aria-hidden="true" />
        )}
      </td>
      <td class="number">{formatNumber(run.reward)}</td>
      <td class="number">{formatNumber(run.heldOut)}</td>
      <td class="number">{formatNumber(run.gpus)}</td>
      {hasCost && <td class="number">{formatNumber(run.cost)}</td>}
      <td class="number">{formatSeconds(run.seconds)}</td>
      <td class="number">{formatTime(run.updated)}</td>
    </tr>
  );
}

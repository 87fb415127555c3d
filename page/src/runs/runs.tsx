// All runs as a table, with a filter; those that are selected are laid over each other below it.
import { useId, useState } from "preact/hooks";
import { useRuns } from "../api/runs.ts";
import { Problem, Scroll } from "../parts.tsx";
import { replaceQuery, type Route } from "../routing.ts";
import { filterRuns, parseList, sortRuns, toggleInList, type Column } from "./filter.ts";
import { LaidOver } from "./laid_over.tsx";
import { RunRow } from "./row.tsx";

const COLUMNS: [column: Column, title: string, isNumber: boolean][] = [
  ["name", "Run", false],
  ["phase", "Phase", false],
  ["step", "Step", true],
  ["reward", "Reward", true],
  ["heldOut", "Held-out", true],
  ["gpus", "GPUs", true],
  ["seconds", "Time", true],
  ["updated", "Updated", true],
];

export function RunsView({ route }: { route: Route }) {
  const { data, error } = useRuns();
  const [order, setOrder] = useState<{ column: Column; isDescending: boolean }>({ column: "updated", isDescending: true });
  const filterId = useId();
  const filter = route.query["filter"] ?? "";
  const selected = parseList(route.query["select"]);
  const runs = data?.runs ?? [];
  const shown = sortRuns(filterRuns(runs, filter), order.column, order.isDescending);
  const chosen = selected.flatMap((id) => runs.find((run) => run.id === id) ?? []);
  return (
    <>
      <div class="heading">
        <h1>Runs</h1>
        <div class="field">
          <label for={filterId}>Filter</label>
          <input
            id={filterId}
            type="search"
            placeholder="name, phase, algorithm"
            value={filter}
            onInput={(event) => replaceQuery(route, { filter: event.currentTarget.value })}
          />
        </div>
      </div>
      <Problem error={error} />
      <Scroll label="Table of runs">
        <table class="runs">
          <thead>
            <tr>
              <th scope="col">
                <span class="visually-hidden">Selected</span>
              </th>
              {COLUMNS.map(([column, title, isNumber]) => (
                <Heading key={column} {...{ column, title, isNumber, order, setOrder }} />
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((run) => (
              <RunRow
                key={run.id}
                run={run}
                isSelected={selected.includes(run.id)}
                onSelect={() => replaceQuery(route, { select: toggleInList(selected, run.id) })}
              />
            ))}
          </tbody>
        </table>
      </Scroll>
      {data !== null && shown.length === 0 && <p class="empty">{runs.length ? "No run has these words." : "No run yet."}</p>}
      {chosen.length > 0 ? (
        <LaidOver runs={chosen} route={route} />
      ) : (
        runs.length > 1 && <p class="hint">Select runs to lay their curves over each other; with two, see what differs.</p>
      )}
    </>
  );
}

interface Order {
  column: Column;
  isDescending: boolean;
}

interface HeadingProps {
  column: Column;
  title: string;
  isNumber: boolean;
  order: Order;
  setOrder: (order: Order) => void;
}

function Heading({ column, title, isNumber, order, setOrder }: HeadingProps) {
  const isSorted = order.column === column;
  const direction = order.isDescending ? "descending" : "ascending";
  return (
    <th scope="col" class={isNumber ? "number" : undefined} aria-sort={isSorted ? direction : undefined}>
      <button
        type="button"
        class="sort"
        onClick={() => setOrder({ column, isDescending: isSorted ? !order.isDescending : isNumber })}
      >
        {title}
        <span aria-hidden="true">{isSorted ? (order.isDescending ? " ↓" : " ↑") : ""}</span>
      </button>
    </th>
  );
}

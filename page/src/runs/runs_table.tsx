// The runs of this machine and of stores as a table that is sorted by its headings.
import { useState } from "preact/hooks";
import type { Run } from "../api/types.ts";
import { Scroll } from "../parts.tsx";
import { sortRuns, type Column } from "./filter.ts";
import { RunRow } from "./row.tsx";

const COLUMNS: [column: Column, title: string, isNumber: boolean][] = [
  ["name", "Run", false],
  ["phase", "Phase", false],
  ["step", "Step", true],
  ["reward", "Reward", true],
  ["heldOut", "Held-out", true],
  ["gpus", "GPUs", true],
  ["cost", "Cost", true],
  ["seconds", "Time", true],
  ["updated", "Updated", true],
];

interface Props {
  runs: Run[];
  selected: string[];
  onSelect: (id: string) => void;
}

export function RunsTable({ runs, selected, onSelect }: Props) {
  const [order, setOrder] = useState<Order>({ column: "updated", isDescending: true });
  const hasCosts = runs.some(({ cost }) => cost !== null);
  const columns = COLUMNS.filter(([column]) => column !== "cost" || hasCosts);
  return (
    <Scroll label="Table of runs">
      <table class="runs">
        <thead>
          <tr>
            <th scope="col">
              <span class="visually-hidden">Selected</span>
            </th>
            {columns.map(([column, title, isNumber]) => (
              <Heading key={column} {...{ column, title, isNumber, order, setOrder }} />
            ))}
          </tr>
        </thead>
        <tbody>
          {sortRuns(runs, order.column, order.isDescending).map((run) => (
            <RunRow key={run.id} run={run} hasCost={hasCosts} isSelected={selected.includes(run.id)} onSelect={() => onSelect(run.id)} />
          ))}
        </tbody>
      </table>
    </Scroll>
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

// The numbers behind a chart, the newest first; rows exist only while it is open.
import { useState } from "preact/hooks";
import { formatNumber } from "../format.ts";
import { Scroll } from "../parts.tsx";
import type { ChartData } from "./data.ts";

/** At first, and with each press of the button. */
const ROWS = 100;

export function NumbersTable({ title, data, xName }: { title: string; data: ChartData; xName: string }) {
  const [isOpen, setIsOpen] = useState(false);
  const [most, setMost] = useState(ROWS);
  return (
    <details class="numbers" onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary aria-label={`Table of ${title}`}>Table</summary>
      {isOpen && (
        <Scroll label={`Table of ${title}`}>
          <table>
            <thead>
              <tr>
                <th scope="col">{xName}</th>
                {data.lines.map(({ label }) => (
                  <th scope="col" key={label}>
                    {label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>{listPlaces(data.x.length, most).map((place) => <Row key={place} data={data} place={place} />)}</tbody>
          </table>
          {data.x.length > most && (
            <button type="button" onClick={() => setMost(most + ROWS)}>
              Older rows
            </button>
          )}
        </Scroll>
      )}
    </details>
  );
}

function listPlaces(count: number, most: number): number[] {
  return Array.from({ length: Math.min(count, most) }, (_, index) => count - 1 - index);
}

function Row({ data, place }: { data: ChartData; place: number }) {
  return (
    <tr>
      <th scope="row">{formatNumber(data.x[place])}</th>
      {data.lines.map(({ label, values }) => (
        <td key={label}>{formatNumber(values[place])}</td>
      ))}
    </tr>
  );
}

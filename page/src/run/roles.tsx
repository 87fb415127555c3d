// The run's roles and generators as tables, and flat lists: the ledger of rollouts, what a run started with.
import type { Nested } from "../api/types.ts";
import { flatten, formatName, formatNested, formatTitle } from "../format.ts";
import { Fact, Scroll, Section } from "../parts.tsx";

export function Roles({ roles }: { roles: Record<string, Record<string, Nested>> }) {
  const rows = Object.entries(roles).map(([role, values]) => ({ role, ...values }));
  return (
    <Section title="Roles">
      {rows.length === 0 ? <p class="empty">No role is recorded.</p> : <Records label="Table of roles" rows={rows} />}
    </Section>
  );
}

/** Rows by their first field, with a column for each field that one of them has. */
export function Records({ label, rows }: { label: string; rows: Record<string, Nested>[] }) {
  const [first = "", ...others] = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return (
    <Scroll label={label}>
      <table>
        <thead>
          <tr>
            <th scope="col">{formatTitle(first)}</th>
            {others.map((column) => (
              <th scope="col" class="number" key={column}>
                {formatName(column)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              <th scope="row">{formatNested(row[first])}</th>
              {others.map((column) => (
                <td class="number" key={column}>
                  {formatNested(row[column])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

export function List({ of, empty }: { of: Record<string, Nested>; empty: string }) {
  const entries = flatten(of).filter(([name]) => name !== "");
  if (entries.length === 0) return <p class="empty">{empty}</p>;
  return (
    <dl class="list">
      {entries.map(([name, value]) => (
        <Fact key={name} name={formatName(name)}>
          {formatNested(value)}
        </Fact>
      ))}
    </dl>
  );
}

// The run's roles as a table, and flat lists: the ledger of rollouts, what a run started with.
import type { Nested } from "../api/types.ts";
import { flatten, formatName, formatNested } from "../format.ts";
import { Fact, Scroll, Section } from "../parts.tsx";

export function Roles({ roles }: { roles: Record<string, Record<string, Nested>> }) {
  const entries = Object.entries(roles);
  const columns = [...new Set(entries.flatMap(([, values]) => Object.keys(values)))];
  return (
    <Section title="Roles">
      {entries.length === 0 ? (
        <p class="empty">No role is recorded.</p>
      ) : (
        <Scroll label="Table of roles">
          <table>
            <thead>
              <tr>
                <th scope="col">Role</th>
                {columns.map((column) => (
                  <th scope="col" class="number" key={column}>
                    {formatName(column)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {entries.map(([role, values]) => (
                <tr key={role}>
                  <th scope="row">{role}</th>
                  {columns.map((column) => (
                    <td class="number" key={column}>
                      {formatNested(values[column])}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Section>
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

// What differs between two runs, by path: manifest, code, data, versions.
import { useFetched } from "../api/polled.ts";
import { withQuery } from "../api/client.ts";
import type { Difference, Run } from "../api/types.ts";
import { formatExact } from "../format.ts";
import { Problem, Scroll } from "../parts.tsx";
import { nameApart } from "./filter.ts";

export function Differences({ first, second }: { first: Run; second: Run }) {
  const { data, error } = useFetched<{ differences: Difference[] }>(withQuery("/compare", { a: first.id, b: second.id }));
  const names = nameApart([first, second]);
  return (
    <>
      <h3>What differs</h3>
      <Problem error={error} />
      {data?.differences.length === 0 && <p class="empty">Nothing that the runs recorded.</p>}
      {data !== null && data.differences.length > 0 && (
        <Scroll label="Table of what differs">
          <table class="differences">
            <thead>
              <tr>
                <th scope="col">Field</th>
                <th scope="col">{names.get(first.id)}</th>
                <th scope="col">{names.get(second.id)}</th>
              </tr>
            </thead>
            <tbody>
              {data.differences.map(({ path, a, b }) => (
                <tr key={path}>
                  <th scope="row">
                    <code>{path}</code>
                  </th>
                  <td>{formatExact(a)}</td>
                  <td>{formatExact(b)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </>
  );
}

// What the operator says of a job: its conditions, and why its figures and samples are not shown.
import type { Condition } from "../api/types.ts";
import { formatTime } from "../format.ts";
import { Scroll } from "../parts.tsx";

export function Hidden({ reason }: { reason: string | undefined }) {
  if (!reason) return null;
  return (
    <p class="problem" role="status">
      Figures and samples are not shown: {reason}.
    </p>
  );
}

export function Conditions({ conditions }: { conditions: Condition[] | undefined }) {
  if (!conditions?.length) return null;
  return (
    <details class="conditions">
      <summary>Conditions: {conditions.map(({ type, status }) => `${type} ${status}`).join(", ")}</summary>
      <Scroll label="Table of conditions">
        <table>
          <thead>
            <tr>
              {["Type", "Status", "Reason", "Message", "Since"].map((name) => (
                <th key={name} scope="col">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {conditions.map((each) => (
              <tr key={each.type}>
                <th scope="row">{each.type}</th>
                <td>{each.status}</td>
                <td>{each.reason}</td>
                <td>{each.message}</td>
                <td>{formatTime(each.lastTransitionTime)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </details>
  );
}

// For viewers who may not list the jobs of all namespaces: names those to look into.
import { useId, useState } from "preact/hooks";
import { readNamespaces, storeNamespaces } from "../api/runs.ts";

export function Namespaces({ refused }: { refused: string[] }) {
  const id = useId();
  const [text, setText] = useState(readNamespaces());
  const change = (value: string): void => {
    setText(value);
    storeNamespaces(value);
  };
  return (
    <div class="field">
      <label for={id}>Namespaces</label>
      <input id={id} type="text" placeholder="team-a, team-b" value={text} onChange={(event) => change(event.currentTarget.value)} />
      {refused.length > 0 && <span role="status">You may not list the jobs of {refused.join(", ")}.</span>}
    </div>
  );
}

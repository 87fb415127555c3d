// Saves a step, and those before it, as a trace for Perfetto: https://ui.perfetto.dev reads the file in the browser.
import { useState } from "preact/hooks";
import { get, isExport, withQuery } from "../api/client.ts";
import { asRefused } from "../api/polled.ts";

const STEPS = 20;
const TYPE = "application/json";

export function TraceButton({ id, step }: { id: string; step: number }) {
  const [result, setResult] = useState("");
  if (isExport) return null; // which has the trace of no step
  const save = async (): Promise<void> => {
    try {
      const trace = await get<object>(withQuery(`/runs/${encodeURIComponent(id)}/trace`, { step, count: STEPS }));
      saveFile(`step-${step}.trace.json`, JSON.stringify(trace));
      setResult("Saved: open it at ui.perfetto.dev");
    } catch (problem) {
      setResult(asRefused(problem).message);
    }
  };
  return (
    <p class="controls">
      <button type="button" onClick={() => void save()}>
        Save for Perfetto
      </button>
      <span role="status">{result || `this step and up to ${STEPS - 1} before it, as a trace`}</span>
    </p>
  );
}

function saveFile(name: string, content: string): void {
  const address = URL.createObjectURL(new Blob([content], { type: TYPE }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}

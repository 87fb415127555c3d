// All runs as a table, with a filter; those that are selected are laid over each other below it.
import { useId } from "preact/hooks";
import { useRuns } from "../api/runs.ts";
import { Problem } from "../parts.tsx";
import { replaceQuery, type Route } from "../routing.ts";
import { filterRuns, parseList, toggleInList } from "./filter.ts";
import { JobsTable } from "./jobs_table.tsx";
import { LaidOver } from "./laid_over.tsx";
import { Namespaces } from "./namespaces.tsx";
import { RunsTable } from "./runs_table.tsx";

export function RunsView({ route }: { route: Route }) {
  const { data, error } = useRuns();
  const filterId = useId();
  const filter = route.query["filter"] ?? "";
  const selected = parseList(route.query["select"]);
  const runs = data?.runs ?? [];
  const shown = filterRuns(runs, filter);
  const chosen = selected.flatMap((id) => runs.find((run) => run.id === id) ?? []);
  const select = (id: string): void => replaceQuery(route, { select: toggleInList(selected, id) });
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
      {data?.asksNamespaces && <Namespaces refused={data.refused ?? []} />}
      {data?.columns ? (
        <JobsTable columns={data.columns} jobs={shown} selected={selected} onSelect={select} />
      ) : (
        <RunsTable runs={shown} selected={selected} onSelect={select} />
      )}
      {data !== null && shown.length === 0 && <p class="empty">{runs.length ? "No run has these words." : "No run yet."}</p>}
      {chosen.length > 0 ? (
        <LaidOver runs={chosen} route={route} />
      ) : (
        runs.length > 1 && <p class="hint">Select runs to lay their curves over each other; with two, see what differs.</p>
      )}
    </>
  );
}

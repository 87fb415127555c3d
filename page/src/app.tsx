// The frame of every view: a link past the header, the way back, and the view that the address names.
import { useEffect, useRef } from "preact/hooks";
import { isExport } from "./api/client.ts";
import { useRuns } from "./api/runs.ts";
import { Boundary } from "./boundary.tsx";
import { formatRoute, useRoute, type Route } from "./routing.ts";
import { RunView } from "./run/run.tsx";
import { TimelineView } from "./run/timeline.tsx";
import { Login } from "./runs/login.tsx";
import { RunsView } from "./runs/runs.tsx";
import { SamplesView } from "./samples/samples.tsx";

export function App() {
  const route = useRoute();
  const main = useRef<HTMLElement>(null);
  const [place, id, view] = route.parts;
  const { data, error } = useRuns();
  const run = data?.runs.find((each) => each.id === id);
  const isRun = place === "runs" && id !== undefined;
  const address = route.parts.join("/");
  const opened = useRef(address);
  useEffect(() => {
    document.title = [run?.name ?? "Runs", view, "rlhf"].filter(Boolean).join(" · ");
  }, [run?.name, view]);
  useEffect(() => {
    if (opened.current === address) return; // not at first: the reader begins at the top
    opened.current = address;
    main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [address]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => skip(event, main.current)}>
        Skip to the content
      </a>
      <header class="top">
        <a class="home" href={formatRoute([])}>
          rlhf
        </a>
        <nav aria-label="Views">
          <ul>
            <Entry href={formatRoute([])} isOpen={!isRun} text="Runs" />
            {isRun && <Entry href={formatRoute(["runs", id])} isOpen={view === undefined} text="Run" />}
            {isRun && <Entry href={formatRoute(["runs", id, "samples"])} isOpen={view === "samples"} text="Samples" />}
            {isRun && <Entry href={formatRoute(["runs", id, "timeline"])} isOpen={view === "timeline"} text="Timeline" />}
          </ul>
        </nav>
        {isExport && <span class="badge">export</span>}
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        <Boundary key={address}>
          {error?.asksToken ? <Login message={error.message} /> : <View route={route} />}
        </Boundary>
      </main>
    </>
  );
}

function View({ route }: { route: Route }) {
  const [place, id, view] = route.parts;
  if (place !== "runs" || id === undefined) return <RunsView route={route} />;
  if (view === "samples") return <SamplesView key={id} id={id} route={route} />;
  if (view === "timeline") return <TimelineView key={id} id={id} route={route} />;
  return <RunView key={id} id={id} route={route} />;
}

function Entry({ href, isOpen, text }: { href: string; isOpen: boolean; text: string }) {
  return (
    <li>
      <a href={href} aria-current={isOpen ? "page" : undefined}>
        {text}
      </a>
    </li>
  );
}

/** The address names the view, so the link must not change it. */
function skip(event: Event, main: HTMLElement | null): void {
  event.preventDefault();
  main?.focus();
}

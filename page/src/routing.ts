// The address behind `#`: a view's parts and arguments, so that each view has a link and the back button works.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  parts: string[];
  query: Record<string, string>;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function formatRoute(parts: string[], query: Record<string, string | number | null | undefined> = {}): string {
  const set = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const follow = (): void => setHash(location.hash);
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return parseRoute(hash);
}

/** Changes arguments of the view that is open, without an entry in the history. */
export function replaceQuery(route: Route, changes: Record<string, string | number | null>): void {
  const next = formatRoute(route.parts, { ...route.query, ...changes });
  history.replaceState(null, "", next);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

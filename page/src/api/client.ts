// Conditional GETs of the API, with the token of the printed address, or on a cluster the one that the viewer gives; in
// an export, lookups in the page's own data.
import { readExport, type Exported } from "./exported.ts";

export class Refused extends Error {
  readonly status: number;
  /** True where a Kubernetes token is asked for. */
  readonly asksToken: boolean;
  constructor(status: number, message: string, asksToken = false) {
    super(message);
    this.status = status;
    this.asksToken = asksToken;
  }
}

interface Kept {
  etag: string;
  body: unknown;
}

const TIMEOUT_MS = 15_000;
const MOST_KEPT = 200;
const KEY = "rlhf-token";
const kept = new Map<string, Kept>();
const exported: Exported | null = readExport();

/** A viewer's Kubernetes token: of this page alone, and gone with it. */
let viewersToken: string | null = null;

export const isExport = exported !== null;

export function giveToken(token: string): void {
  viewersToken = token;
  kept.clear();
}

/** Takes the token out of the address, where it would stay in the history, into this tab's storage. */
export function storeToken(): void {
  const given = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (given === undefined) return;
  sessionStorage.setItem(KEY, decodeURIComponent(given));
  history.replaceState(null, "", "#/");
}

/** The same object again where the server has nothing new (304). */
export async function get<T>(path: string): Promise<T> {
  if (exported !== null) {
    const body = exported.lookUp(path);
    if (body === undefined) throw new Refused(404, "not in this export");
    return body as T;
  }
  const last = kept.get(path);
  const headers: Record<string, string> = {};
  const token = viewersToken ?? sessionStorage.getItem(KEY);
  if (token !== null) headers["Authorization"] = `Bearer ${token}`; // without one a proxy may give it
  if (last) headers["If-None-Match"] = last.etag;
  const reply = await fetch(`api/v1${path}`, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (reply.status === 304 && last) return last.body as T;
  if (!reply.ok) {
    const asksToken = reply.status === 401 && reply.headers.has("WWW-Authenticate");
    throw new Refused(reply.status, await readProblem(reply), asksToken);
  }
  const body: unknown = await reply.json();
  const etag = reply.headers.get("ETag");
  if (etag !== null) keep(path, { etag, body });
  return body as T;
}

function keep(path: string, entry: Kept): void {
  kept.delete(path);
  kept.set(path, entry);
  for (const oldest of kept.keys()) {
    if (kept.size <= MOST_KEPT) break;
    kept.delete(oldest);
  }
}

async function readProblem(reply: Response): Promise<string> {
  try {
    const body: unknown = await reply.json();
    if (typeof body === "object" && body !== null && "error" in body) return String(body.error);
  } catch {
    // no JSON: the status says enough
  }
  return `the server answered ${reply.status}`;
}

/** A path with those arguments that are set. */
export function withQuery(path: string, query: Record<string, string | number | null | undefined>): string {
  const set = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(set.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

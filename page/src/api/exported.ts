// The data of an exported page: replies by path, and those that depend on arguments made of what is whole.
import type { Sample, Samples, Series } from "./types.ts";

export class Exported {
  readonly replies: Record<string, unknown>;

  constructor(replies: Record<string, unknown>) {
    this.replies = replies;
  }

  lookUp(path: string): unknown {
    const [bare = "", query = ""] = path.split("?");
    const wanted = new URLSearchParams(query);
    if (bare.endsWith("/metrics") && wanted.has("names")) return this.selectSeries(bare, wanted);
    if (bare.endsWith("/samples") && Object.hasOwn(this.replies, bare)) return this.selectSamples(bare, wanted);
    return Object.hasOwn(this.replies, path) ? this.replies[path] : undefined;
  }

  private selectSeries(bare: string, wanted: URLSearchParams): Series | undefined {
    const whole = this.replies[`${bare}?names=*`] as Series | undefined;
    if (whole === undefined) return undefined;
    const first = whole.steps.findIndex((step) => step > Number(wanted.get("after") ?? -Infinity));
    const from = first < 0 ? whole.steps.length : first;
    const names = (wanted.get("names") ?? "").split(",");
    return {
      ...whole,
      steps: whole.steps.slice(from),
      elapsed: whole.elapsed.slice(from),
      series: Object.fromEntries(names.map((name) => [name, (whole.series[name] ?? []).slice(from)])),
    };
  }

  private selectSamples(bare: string, wanted: URLSearchParams): unknown {
    const whole = this.replies[bare] as Samples;
    const samples = orderSamples(filterSamples(whole.samples, wanted), wanted.get("order"));
    const searched = wanted.get("search") ? whole.samples.length : null;
    const isAll = whole.samples.length === whole.total;
    return { ...whole, samples, searched, count: searched ?? samples.length, whole: isAll, next: null };
  }
}

function filterSamples(samples: Sample[], wanted: URLSearchParams): Sample[] {
  const step = wanted.get("step");
  const prompt = wanted.get("prompt");
  const group = wanted.get("group");
  const search = wanted.get("search")?.toLowerCase();
  const [low, high] = [Number(wanted.get("low") ?? -Infinity), Number(wanted.get("high") ?? Infinity)];
  return samples.filter(
    (sample) =>
      (step === null || sample.step === Number(step)) &&
      (prompt === null || sample.prompt === prompt || sample.promptId === prompt) &&
      (group === null || sample.group === group) &&
      (!search || `${sample.prompt}\n${sample.response}`.toLowerCase().includes(search)) &&
      (!(wanted.has("low") || wanted.has("high")) ||
        (sample.score !== null && sample.score >= low && sample.score <= high)),
  );
}

function orderSamples(samples: Sample[], order: string | null): Sample[] {
  const oldest = samples.toSorted((a, b) => a.step - b.step);
  const scored = oldest.filter(({ score }) => score !== null);
  if (order === "best") return scored.toSorted((a, b) => (b.score ?? 0) - (a.score ?? 0));
  if (order === "worst") return scored.toSorted((a, b) => (a.score ?? 0) - (b.score ?? 0));
  return order === "oldest" ? oldest : oldest.toSorted((a, b) => b.step - a.step);
}

export function readExport(): Exported | null {
  const element = globalThis.document?.getElementById("export");
  if (!element) return null;
  return new Exported((JSON.parse(element.textContent ?? "{}") as { replies: Record<string, unknown> }).replies);
}

// What the API answers; docs/reference/page-api.md has its fields.

export type Scalar = string | number | boolean | null;
export type Nested = Scalar | Nested[] | { [key: string]: Nested };

export interface Run {
  id: string;
  name: string;
  place: string;
  phase: string;
  algorithm: string;
  step: number | null;
  steps: number | null;
  reward: number | null;
  heldOut: number | null;
  gpus: number | null;
  /** Null where none is counted: on one machine, and of a run that only its store tells. */
  cost: number | null;
  started: string | null;
  updated: string | null;
  seconds: number | null;
  /** On a cluster: the texts of the columns. */
  cells?: string[];
}

export interface Runs {
  runs: Run[];
  /** On a cluster: the columns of `kubectl get rlhfjobs`. */
  columns?: JobColumn[];
  /** True if the viewer may not list the jobs of all namespaces at once. */
  asksNamespaces?: boolean;
  /** Named namespaces whose jobs the viewer may not list. */
  refused?: string[];
}

export interface JobColumn {
  name: string;
  isNumber: boolean;
}

export interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
  lastTransitionTime: string;
}

export interface Checkpoint {
  step: number;
  created: string | null;
  bytes: number | null;
  good: boolean;
  evaluation?: Nested;
  /** True for the highest evaluation. */
  best: boolean;
  /** Increases with each start of the trainer. */
  epoch: number;
  clone: string;
  export?: string;
  /** Repeats the step and compares it with what the trainer computed. */
  repeat?: string;
}

/** A run that begins at a step of another one, or at a step of which this one begins. */
export interface Relative {
  id: string;
  name: string;
  phase: string;
  step: number | null;
  reward: number | null;
  heldOut: number | null;
}

export interface Clones {
  origin: { store: string; step: number; run: Relative | null } | null;
  clones: { step: number; run: Relative }[];
}

/** Responses to one held-out prompt, the newest first. */
export interface HeldOutPrompt {
  set: string;
  prompt: string;
  responses: { step: number; response: string; score: number | null }[];
}

export interface Usage {
  gpuSeconds: number | null;
  cost: number | null;
  costPerHour: number | null;
  stepSeconds: number | null;
  /** Medians by phase of a step. */
  phaseSeconds?: Record<string, number>;
  /** True if generation goes on meanwhile: its measured seconds are those for which the trainer waits. */
  generatesAhead?: boolean;
  /** Before the start, at the rates of an earlier run. */
  predicted?: { step: number; phases: Record<string, number>; by: string } | null;
  /** The reason for which no seconds were predicted. */
  unpredicted?: string | null;
  /** Gigabytes of a trainer's GPU. */
  memoryPeak: number | null;
  /** Of a GPU, by role, with the arithmetic. */
  memoryPredicted: Record<string, string>;
}

export interface FirstChart {
  title: string;
  names: string[];
}

export interface RunDetail {
  id: string;
  name: string;
  phase: string;
  reason: string | null;
  manifest: string;
  algorithm: string;
  /** On a cluster: why figures and samples are not shown. */
  hidden?: string;
  conditions?: Condition[];
  roles: Record<string, Record<string, Nested>>;
  generators: Record<string, Nested>[];
  /** The weights that are served, and what waits; empty of a run that does not go on. */
  serving?: Record<string, number>;
  ledger: Record<string, Nested>;
  estimatedEnd?: string | null;
  usage?: Usage;
  provenance: Record<string, Nested>;
  checkpoints: Checkpoint[];
  /** Why its store cannot be read; empty if it can. */
  storeProblem: string;
  commands: Record<string, string>;
  first: FirstChart[];
}

export interface Metric {
  name: string;
  help: string;
  unit: string;
}

export interface Series {
  steps: number[];
  /** Seconds that the steps up to each one took together. */
  elapsed: number[];
  /** Changes when steps that were read may have been written again. */
  generation: number;
  series: Record<string, (number | null)[]>;
}

export interface Mark {
  step: number;
  time: string | null;
  kind: string;
  text: string;
}

export interface Alarm {
  level: "error" | "warning" | "info";
  title: string;
  text: string;
  rule: string;
}

export interface LogFile {
  name: string;
  role: string;
  bytes: number;
  updated: string | null;
}

export interface Log {
  attempts: number;
  text: string;
}

export interface Span {
  name: string;
  role: string;
  /** The process, of the trainer a rank. */
  who: string;
  start: number;
  end: number;
}

export interface Timeline {
  step: number;
  /** False if the spans are made of the step's figures. */
  recorded: boolean;
  spans: Span[];
  idle: Record<string, number>;
  steps?: number[];
}

export interface Turn {
  role: string;
  text: string;
  reward?: number | null;
}

export interface Sample {
  id: string;
  step: number;
  promptId: string;
  prompt: string;
  response: string;
  score: number | null;
  parts: Record<string, Nested>;
  advantage: number | null;
  finished: boolean | null;
  version: number | null;
  tokens: number | null;
  turns: Turn[];
  group: string;
}

export interface Samples {
  samples: Sample[];
  next: string | null;
  /** How many are chosen, without regard to the text that is searched. */
  count: number;
  /** How many of these were searched for the page; null without a text. */
  searched: number | null;
  /** How many there are. */
  total: number;
  /** False while older ones are being read, or are left out. */
  whole: boolean;
  steps: number[];
}

export interface Token {
  text: string;
  logprob: number | null;
  old: number | null;
  reference: number | null;
  /** Only of a job that computes it before its updates. */
  entropy: number | null;
  ratio: number | null;
  kl: number | null;
  advantage: number | null;
  mask: boolean;
  version: number | null;
}

export interface Scores {
  edges: number[];
  counts: number[];
  unscored: number;
  samples: number;
  /** The first and the last. */
  steps: [number, number];
  /** False if there are others, or a text was searched in the newest alone. */
  whole: boolean;
}

export interface Difference {
  path: string;
  a: Nested;
  b: Nested;
}

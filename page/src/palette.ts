// Colours that people with any kind of colour vision tell apart: Okabe and Ito's for series, blue to orange for signed values.

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#a8537f", "#b27800", "#4d4d4d"];
const DARK = ["#56b4e9", "#e69f00", "#2fc79a", "#e08fbd", "#f0e442", "#c8c8c8"];
const DASHES = [[], [8, 4], [2, 3]];

export interface Stroke {
  colour: string;
  dash: number[];
}

/** The stroke of a series: colours first, then the same with dashes. */
export function pickStroke(index: number, isDark: boolean): Stroke {
  const colours = isDark ? DARK : LIGHT;
  const dash = DASHES[Math.floor(index / colours.length) % DASHES.length] ?? [];
  return { colour: colours[index % colours.length] ?? "#888888", dash };
}

/** A background for a signed value between -1 and 1: orange below zero, blue above, clear at zero. */
export function shadeSigned(value: number): string {
  const strength = Math.min(1, Math.abs(value));
  return `rgb(${value < 0 ? "230 140 0" : "40 140 220"} / ${(strength * 0.5).toFixed(3)})`;
}

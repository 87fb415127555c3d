// Draws what happened to a run over its curves: a dashed line each, with the initial of its kind where there is room.
import type uPlot from "uplot";
import type { ChartMark } from "./data.ts";

const ROOM_PX = 14;
const COLOURS: Record<string, [light: string, dark: string]> = {
  fault: ["#b3261e", "#ff9d94"],
  health: ["#b25a00", "#e69f00"],
  restart: ["#b3261e", "#ff9d94"],
  resume: ["#00795a", "#2fc79a"],
  membership: ["#0072b2", "#56b4e9"],
};

export function pickMarkColour(kind: string, isDark: boolean): string {
  return (COLOURS[kind] ?? ["#5c5c5c", "#b0b0b0"])[isDark ? 1 : 0];
}

export function drawMarks(plot: uPlot, marks: readonly ChartMark[], isDark: boolean): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  let lastLabel = -Infinity;
  ctx.save();
  ctx.font = `600 ${10 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  for (const mark of marks) {
    const at = plot.valToPos(mark.x, "x", true);
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = pickMarkColour(mark.kind, isDark);
    ctx.globalAlpha = 0.75;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top + 12 * ratio);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    if (at - lastLabel < ROOM_PX * ratio) continue;
    ctx.globalAlpha = 1;
    ctx.fillText(mark.kind.charAt(0).toUpperCase(), at, bbox.top + 9 * ratio);
    lastLabel = at;
  }
  ctx.restore();
}

/** The mark within a few pixels of the cursor. */
export function findMark(plot: uPlot, marks: readonly ChartMark[], left: number): ChartMark | null {
  const near = marks.filter((mark) => Math.abs(plot.valToPos(mark.x, "x") - left) < 6);
  return near.at(-1) ?? null;
}

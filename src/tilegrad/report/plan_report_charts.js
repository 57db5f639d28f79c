
// The charts of the report: drawn on canvases, so that thousands of rectangles stay smooth. Runs after plan_report.js.
const PAD = { left: 84, right: 20, top: 16, bottom: 46 };
const TINY = 2; // pixels: what is smaller is merged
const charts = []; // what draws itself again when colours change

function palette() {
  const style = getComputedStyle(document.documentElement), names = ["page", "text", "muted", "line", "accent",
    "budget", "plain", "activation", "gradient", "again", "fetch", "resident", "ink"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1, context = canvas.getContext("2d");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "12px system-ui, sans-serif";
  return context;
}

/** Stripes over rectangles: what runs again and what is fetched is seen without colour, too. */
function hatch(context, boxes, birth, ink) {
  if (birth !== "again" && birth !== "fetch") return;
  context.save();
  context.beginPath();
  boxes.forEach(([x, y, w, h]) => context.rect(x, y, w, h));
  context.clip();
  context.beginPath();
  for (const [x, y, w, h] of boxes) {
    for (let at = 4; at < w + h; at += 8) {
      if (birth === "again") context.moveTo(x + at, y), context.lineTo(x + at - h, y + h);
      else context.moveTo(x + at - h, y), context.lineTo(x + at, y + h);
    }
  }
  Object.assign(context, { strokeStyle: ink, globalAlpha: 0.35, lineWidth: 1 });
  context.stroke();
  context.restore();
}

function line(context, points, style, width, dash) {
  context.save();
  context.beginPath();
  points.forEach(([x, y]) => context.lineTo(x, y));
  Object.assign(context, { strokeStyle: style, lineWidth: width, lineJoin: "round" });
  context.setLineDash(dash);
  context.stroke();
  context.restore();
}

/** The grid and the axes of a chart. Returns the maps from figures to pixels. */
function drawFrame(context, size, colours, axes) {
  const { left, right, top, bottom } = PAD, width = size.width - left - right, height = size.height - top - bottom;
  const x = (value) => left + (value / axes.xMost) * width, y = (count) => top + height * (1 - count / axes.yMost);
  const [unit, unitName] = axes.yMost >= GIB ? [GIB, "GiB"] : [MIB, "MiB"];
  const timed = axes.seconds, [second, secondName] = axes.xMost >= 0.1 ? [1, "s"] : [1e-3, "ms"];
  context.fillStyle = colours.muted;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const tick of ticks(axes.yMost / unit, 6)) {
    line(context, [[left, y(tick * unit)], [left + width, y(tick * unit)]], colours.line, 1, []);
    context.fillText(`${tick} ${unitName}`, left - 8, y(tick * unit));
  }
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const tick of ticks(timed ? axes.xMost / second : axes.xMost, Math.max(2, Math.min(8, width / 90)))) {
    const at = x(timed ? tick * second : tick);
    if (!timed && !Number.isInteger(tick)) continue;
    line(context, [[at, top + height], [at, top + height + 4]], colours.muted, 1, []);
    context.fillText(timed ? `${tick} ${secondName}` : tick.toLocaleString("en"), at, top + height + axes.gap);
  }
  return { x, y, left, top, width, height, toX: (px) => ((px - left) / width) * axes.xMost };
}

/** Levels across a chart, with what they are. */
function drawLevels(context, frame, yMost, levels, colours) {
  context.textBaseline = "bottom";
  for (const { text, bytes, colour, dash, align } of levels) {
    const inside = bytes <= yMost, y = inside ? frame.y(bytes) : frame.top + 12, end = frame.left + frame.width;
    if (inside) line(context, [[frame.left, y], [end, y]], colour, 2, dash);
    const said = inside ? text : `${text}: above this chart`, x = align === "left" ? frame.left + 8 : end - 8;
    Object.assign(context, { textAlign: align, fillStyle: colour, strokeStyle: colours.page, lineWidth: 4 });
    context.strokeText(said, x, y - 3);
    context.fillText(said, x, y - 3);
  }
}

/** How high a chart is: a budget far above all that happens would press it flat. */
const highest = (most) => (budget <= 1.6 * most ? Math.max(budget, most) : most) * 1.06 || 1;
const budgetLine = (colours) =>
  ({ text: `budget ${formatBytes(budget)}`, bytes: budget, colour: colours.budget, dash: [9, 5], align: "left" });

/** A chart to point at and to walk through with keys. `spec`: height, count, first, draw, pick, go, mark, say. */
function makeChart(host, spec) {
  const base = make("canvas"), over = make("canvas"), tip = make("div", "tip");
  let at = -1, last = spec.first, size = { width: 0, height: spec.height };
  const show = (index) => {
    const context = fitCanvas(over, size.width, size.height);
    at = index;
    tip.hidden = index < 0;
    if (index < 0) return;
    last = index;
    const [x, y] = spec.mark(context, index, palette()), lines = spec.say(index);
    tip.replaceChildren(...lines.map((text) => make("div", "", text)));
    host.setAttribute("aria-valuenow", index + 1);
    host.setAttribute("aria-valuetext", lines.join(", "));
    const beyond = x + 14 + tip.offsetWidth > size.width;
    tip.style.left = `${Math.max(0, beyond ? x - 14 - tip.offsetWidth : x + 14)}px`;
    tip.style.top = `${Math.max(0, Math.min(y + 14, size.height - tip.offsetHeight))}px`;
  };
  const redraw = () => {
    size = { width: Math.max(280, host.clientWidth), height: spec.height };
    host.style.height = `${size.height}px`;
    spec.draw(fitCanvas(base, size.width, size.height), size, palette());
    show(at);
  };
  const point = (event) => {
    const corner = host.getBoundingClientRect();
    show(spec.pick(event.clientX - corner.left, event.clientY - corner.top));
  };
  const attributes = { tabindex: 0, role: "slider", "aria-valuemin": 1, "aria-valuemax": spec.count,
    "aria-valuenow": spec.first + 1, "aria-valuetext": spec.say(spec.first).join(", ") };
  Object.entries(attributes).forEach(([key, value]) => host.setAttribute(key, value));
  host.append(base, over, tip);
  host.addEventListener("pointermove", point);
  host.addEventListener("pointerdown", point);
  host.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(-1));
  host.addEventListener("focus", () => host.matches(":focus-visible") && show(last));
  host.addEventListener("blur", () => show(-1));
  host.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const next = event.key === "Escape" ? -1 : spec.go(last, event.key);
    if (next === undefined) return;
    event.preventDefault();
    show(next);
  });
  charts.push(redraw);
  redraw();
  new ResizeObserver(() => host.clientWidth !== size.width && redraw()).observe(host);
  return redraw;
}

// Memory over time --------------------------------------------------------------------------------------------------

const VERBS = { forward: "runs", again: "runs again:", backward: "runs", update: "runs", free: "frees",
  offload: "begins to copy to the host:", fetch: "begins to copy back from the host:", tile: "runs" };

const kindOf = (plan, step) => STEPS[plan.steps.kind[step]];
const sayStep = (plan, step) => `${VERBS[kindOf(plan, step)]} ${texts[plan.steps.what[step]]}`;
const roleOf = (plan) => (plan === chosen ? "the chosen plan" : "plain");
const startOf = (plan, step) =>
  (step < plan.steps.kind.length ? plan.steps.start_s[step] : plan.time.total_s);

/** The plans to draw: the chosen one and plain on one axis; where either has no times, the chosen one in order. */
function pickCurves() {
  const known = [chosen, plain].filter((plan) => plan?.steps?.kind.length);
  const timed = known.filter((plan) => plan.steps.start_s);
  if (!known.length) return { curves: [], seconds: true };
  const seconds = Boolean(known[0].steps.start_s);
  const curves = (seconds ? timed : known.slice(0, 1)).map((plan) => ({
    plan,
    name: roleOf(plan),
    xs: seconds ? plan.steps.start_s : plan.steps.kind.map((_, i) => i),
    end: seconds ? plan.time.total_s : plan.steps.kind.length,
  }));
  return { curves, seconds };
}

/** What runs, as a strip under the curves, and marks where copies begin. */
function drawStrip(context, frame, curve, colours) {
  const y = frame.top + frame.height + 5, { plan, xs, end: last } = curve;
  const fills = { forward: colours.activation, again: colours.again, backward: colours.gradient,
    update: colours.resident };
  const runs = []; // neighbours of one kind as one
  plan.steps.kind.forEach((_, i) => {
    const kind = kindOf(plan, i), x = frame.x(xs[i]), end = frame.x(xs[i + 1] ?? last), before = runs.at(-1);
    if (fills[kind] && end > x && before?.kind === kind && x - before.end < 0.5) before.end = end;
    else if (fills[kind] && end > x) runs.push({ kind, x, end });
    if (kind !== "offload" && kind !== "fetch") return;
    const [tipY, flatY] = kind === "offload" ? [y + 13, y + 20] : [y + 20, y + 13];
    context.fillStyle = colours.fetch;
    context.beginPath();
    [[x, tipY], [x - 4, flatY], [x + 4, flatY]].forEach(([px, py]) => context.lineTo(px, py));
    context.fill();
  });
  for (const { kind, x, end } of runs) {
    context.fillStyle = fills[kind];
    context.fillRect(x, y, Math.max(end - x, 0.5), 10);
    if (kind === "again" && end - x >= TINY) hatch(context, [[x, y, end - x, 10]], kind, colours.ink);
  }
}

/** Colour, width and dashes. */
const curveStyle = (plan, colours) => (plan === chosen ? [colours.accent, 2, []] : [colours.plain, 1.5, [5, 3]]);

function drawCurves(context, size, colours, { curves, seconds, levels }) {
  const peaks = [...curves.map(({ plan }) => plan.memory.peak_bytes), ...levels.map((level) => level.peak_bytes)];
  const axes = { seconds, xMost: Math.max(...curves.map((c) => c.end)) || 1, yMost: highest(Math.max(...peaks)),
    gap: seconds ? 28 : 8 };
  const level = (plan) => ({ text: `peak of ${roleOf(plan)} ${formatBytes(plan.peak_bytes)}`, bytes: plan.peak_bytes,
    colour: plan === chosen ? colours.accent : colours.plain, dash: [2, 4], align: "right" });
  const frame = drawFrame(context, size, colours, axes);
  for (const { plan, xs, end } of [...curves].reverse()) {
    const points = [];
    plan.steps.device_bytes.forEach((count, i) => {
      points.push([frame.x(xs[i]), frame.y(count)], [frame.x(xs[i + 1] ?? end), frame.y(count)]);
    });
    if (plan === curves[0].plan) {
      context.save();
      context.globalAlpha = 0.18;
      context.fillStyle = plan === chosen ? colours.accent : colours.plain;
      context.beginPath();
      [[frame.x(0), frame.y(0)], ...points, [frame.x(end), frame.y(0)]].forEach(([x, y]) => context.lineTo(x, y));
      context.fill();
      context.restore();
    }
    line(context, points, ...curveStyle(plan, colours));
  }
  if (seconds) drawStrip(context, frame, curves[0], colours);
  drawLevels(context, frame, axes.yMost, [budgetLine(colours), ...levels.map(level)], colours);
  return frame;
}

function sayCurve(curves, seconds, which, step) {
  const { plan, name, xs } = curves[which], { device_bytes: device, host_bytes: host } = plan.steps;
  const lines = [`${capital(name)} (${plan.planner}): step ${step + 1} of ${device.length}`, sayStep(plan, step),
    exactBytes(device[step]), ...(host[step] ? [`${formatBytes(host[step])} on the host`] : [])];
  if (!seconds) return lines;
  lines.push(`from ${formatSeconds(xs[step])}`);
  curves.forEach((other, i) => {
    if (i === which) return;
    const there = xs[step] > other.end ? "has ended by then"
      : `${formatBytes(other.plan.steps.device_bytes[lastNotAbove(other.xs, xs[step])])} at this time`;
    lines.push(`${capital(other.name)}: ${there}`);
  });
  return lines;
}

function showCurves() {
  const { curves, seconds } = pickCurves();
  if (!curves.length) return;
  const levels = [chosen, plain].filter((plan) => plan && !curves.some((curve) => curve.plan === plan));
  const counts = curves.map((curve) => curve.xs.length), count = counts.reduce((a, b) => a + b, 0);
  const place = (index) => (index < counts[0] ? [0, index] : [1, index - counts[0]]);
  const flat = (which, step) => (which ? counts[0] : 0) + Math.max(0, Math.min(counts[which] - 1, step));
  let frame = null;
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  byId("curve").hidden = false;
  makeChart(byId("curve-chart"), {
    height: 400, count, first: flat(0, curves[0].plan.memory.peak_step),
    draw: (context, size, colours) => { frame = drawCurves(context, size, colours, { curves, seconds, levels }); },
    pick: (px, py) => {
      const x = Math.max(0, frame.toX(px)), found = curves.map((curve, which) => {
        const step = lastNotAbove(curve.xs, x), away = Math.abs(frame.y(curve.plan.steps.device_bytes[step]) - py);
        return { which, step, away: x > curve.end ? Infinity : away };
      });
      const best = found.reduce((a, b) => (b.away < a.away ? b : a));
      return flat(best.which, best.step);
    },
    go: (index, key) => {
      const [which, step] = place(index), { plan, xs } = curves[which], other = curves[1 - which];
      if (key in moves) return flat(which, step + moves[key]);
      if (key === "p" || key === "P") return flat(which, plan.memory.peak_step);
      if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
      return other ? flat(1 - which, lastNotAbove(other.xs, xs[step])) : index;
    },
    mark: (context, index, colours) => {
      const [which, step] = place(index), { plan, xs, end } = curves[which];
      const x = frame.x(xs[step]), y = frame.y(plan.steps.device_bytes[step]), width = frame.x(xs[step + 1] ?? end) - x;
      Object.assign(context, { globalAlpha: 0.15, fillStyle: colours.text });
      context.fillRect(x, frame.top, Math.max(width, 1), frame.height);
      Object.assign(context, { globalAlpha: 1, strokeStyle: colours.page, lineWidth: 2 });
      line(context, [[x, frame.top], [x, frame.top + frame.height]], colours.text, 1, []);
      context.beginPath();
      context.arc(x, y, 5, 0, 7);
      context.fill();
      context.stroke();
      return [x, y];
    },
    say: (index) => sayCurve(curves, seconds, ...place(index)),
  });
  captionCurves(curves, seconds, levels);
}

function captionCurves(curves, seconds, levels) {
  const peaks = curves.map(({ plan, name }) => `${capital(name)} peaks at ${formatBytes(plan.memory.peak_bytes)} ` +
    `in step ${plan.memory.peak_step + 1}: it ${sayStep(plan, plan.memory.peak_step)}.`);
  const unknown = levels.map((plan) => `Of ${roleOf(plan)} only the peak is drawn: ${formatBytes(plan.peak_bytes)}.`);
  const across = seconds ? "over predicted time" : "tile by tile, in order: how long each takes is not predicted";
  byId("curve-caption").textContent = [`Bytes on the device ${across}.`, ...peaks, ...unknown].join(" ");
  const kinds = new Set(curves[0].plan.steps.kind.map((kind) => STEPS[kind]));
  const has = (name, item) => (seconds && kinds.has(name) ? [item] : []);
  showLegend(byId("curve-legend"), [
    ...curves.map(({ plan, name }) => [name, (c, p) => line(c, [[0, 7], [28, 7]], ...curveStyle(plan, p))]),
    ["budget", (c, p) => line(c, [[0, 7], [28, 7]], p.budget, 2, [9, 5])],
    ...has("forward", ["strip below: forward", (c, p) => swatch(c, p.activation, "", p)]),
    ...has("again", ["runs again", (c, p) => swatch(c, p.again, "again", p)]),
    ...has("backward", ["backward", (c, p) => swatch(c, p.gradient, "", p)]),
    ...has("update", ["update", (c, p) => swatch(c, p.resident, "", p)]),
    ...has("offload", ["▲ a copy to the host begins, ▼ one back", (c, p) => swatch(c, p.fetch, "", p)]),
  ]);
}

function swatch(context, fill, birth, colours) {
  context.fillStyle = fill;
  context.fillRect(0, 1, 28, 12);
  hatch(context, [[0, 1, 28, 12]], birth, colours.ink);
}

function showLegend(list, items) {
  const draws = items.map(([text, draw]) => {
    const canvas = make("canvas");
    canvas.setAttribute("aria-hidden", "true");
    list.append(make("li", "", canvas, text));
    return () => draw(fitCanvas(canvas, 28, 14), palette());
  });
  const redraw = () => draws.forEach((draw) => draw());
  charts.push(redraw);
  redraw();
}

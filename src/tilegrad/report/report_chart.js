// What all charts share: colours and hatches, the stretch of time in view, axes, and a chart that can be pointed at,
// zoomed by dragging, and walked through with keys. Runs after report_profile.js.
const TINY = 1.5; // pixels: what is smaller is merged
const DRAG = 5; // pixels: what is shorter is a click
const redraws = []; // of all charts and legends
let theme = null;

// Colours -----------------------------------------------------------------------------------------------------------

/** Colours by name, read once: they change with light and dark. */
function palette() {
  if (theme) return theme;
  const style = getComputedStyle(document.documentElement), names = ["page", "card", "text", "muted", "line", "accent",
    "budget", "ink", "sky", "orange", "green", "yellow", "blue", "vermillion", "purple", "grey"];
  theme = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  theme.hatched = new Map();
  return theme;
}

/** Strokes of a hatch in a tile of 8 by 8. */
const HATCHES = { "/": [[-2, 2, 2, -2], [-2, 10, 10, -2], [6, 10, 10, 6]],
  "\\": [[-2, 6, 2, 10], [-2, -2, 10, 10], [6, -2, 10, 2]], "-": [[0, 4, 8, 4]], "|": [[4, 0, 4, 8]],
  x: [[-2, -2, 10, 10], [-2, 10, 10, -2]], ".": [[3, 4, 5, 4]] };

/** A colour with its hatch, so that what it means is seen without colour, too. */
function fillOf([colour, hatch], colours = palette()) {
  if (!hatch) return colours[colour];
  const ratio = window.devicePixelRatio || 1, key = `${colour}${hatch}${ratio}`;
  if (!colours.hatched.has(key)) {
    const tile = make("canvas"), size = Math.round(8 * ratio);
    tile.width = tile.height = size;
    const context = tile.getContext("2d");
    context.scale(size / 8, size / 8);
    Object.assign(context, { fillStyle: colours[colour], strokeStyle: colours.ink, lineWidth: hatch === "." ? 2 : 1 });
    context.fillRect(0, 0, 8, 8);
    context.globalAlpha = 0.32;
    HATCHES[hatch].forEach(([x, y, a, b]) => line(context, [[x, y], [a, b]]));
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(8 / size));
    colours.hatched.set(key, pattern);
  }
  return colours.hatched.get(key);
}

function line(context, points, style, width, dash) {
  context.save();
  if (style) Object.assign(context, { strokeStyle: style, lineWidth: width, lineJoin: "round" });
  if (dash) context.setLineDash(dash);
  context.beginPath();
  points.forEach(([x, y]) => context.lineTo(x, y));
  context.stroke();
  context.restore();
}

function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1, context = canvas.getContext("2d");
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    Object.assign(canvas, { width: w, height: h });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return context;
}

/** `items`: texts with what draws a sample of 28 by 14 pixels. */
function showLegend(list, items) {
  const canvases = items.map(() => make("canvas"));
  list.replaceChildren(...items.map(([text], i) => make("li", "", canvases[i], text)));
  canvases.forEach((canvas) => canvas.setAttribute("aria-hidden", "true"));
  list.redraw = () => items.forEach(([, draw], i) => draw(fitCanvas(canvases[i], 28, 14), palette()));
  if (!redraws.includes(list)) redraws.push(list);
  list.redraw();
}

function swatch(style) {
  return (context) => {
    context.fillStyle = fillOf(style);
    context.fillRect(0, 1, 28, 12);
  };
}

// The stretch of time in view ---------------------------------------------------------------------------------------

const view = { lo: 0, hi: profile?.end || 1, most: profile?.end || 1 };
const isZoomed = () => view.hi - view.lo < view.most;

function setView(lo, hi) {
  const least = Math.min(view.most, Math.max(view.most * 1e-7, timed ? 4 : 1));
  const length = clamp(hi - lo, least, view.most);
  const middle = (lo + hi) / 2, from = clamp(middle - length / 2, 0, view.most - length);
  Object.assign(view, { lo: from, hi: from + length });
  byId("range").textContent = isZoomed()
    ? `${pointTime(view.lo)} to ${pointTime(view.hi)} of ${timed ? pointTime(view.most) : sayLength(view.most)}`
    : `all of ${sayLength(view.most)}`;
  byId("reset").hidden = !isZoomed();
  redrawSoon();
}
const resetView = () => setView(0, view.most);
const zoomBy = (factor, at) => setView(at - (at - view.lo) * factor, at + (view.hi - at) * factor);

let waiting = false;
function redrawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    redraws.forEach((item) => item.redraw());
  });
}

/** Puts a stretch in view, without zooming. */
function reveal(from, to) {
  const length = view.hi - view.lo;
  if (to >= view.lo && from <= view.hi) return;
  const middle = clamp((from + to) / 2, from, from + length);
  setView(middle - length / 2, middle + length / 2);
}

// Axes --------------------------------------------------------------------------------------------------------------

function frameOf(size) {
  const left = size.width < 520 ? 58 : 76, right = 16, top = 14, bottom = 30;
  const width = size.width - left - right, height = size.height - top - bottom, per = width / (view.hi - view.lo);
  return { left, top, width, height, right: left + width, bottom: top + height, x: (at) => left + (at - view.lo) * per,
    toTime: (px) => view.lo + (px - left) / per, per };
}

/** What is drawn stays inside the frame. */
function inside(context, frame, draw) {
  context.save();
  context.beginPath();
  context.rect(frame.left, 0, frame.width, frame.bottom);
  context.clip();
  draw();
  context.restore();
}

function drawTimes(context, frame, colours) {
  const count = clamp(frame.width / 110, 2, 9), { lo, hi } = view;
  const ticks = timed ? listTimes(lo * unit, hi * unit, count) : listTicks(lo, hi, count, 1, "", 1);
  context.fillStyle = colours.muted;
  Object.assign(context, { textBaseline: "top", textAlign: "center" });
  for (const [at, text] of ticks) {
    const x = frame.x(at / unit), half = context.measureText(text).width / 2;
    line(context, [[x, frame.top], [x, frame.bottom]], colours.line, 1);
    line(context, [[x, frame.bottom], [x, frame.bottom + 5]], colours.muted, 1);
    context.fillText(text, clamp(x, frame.left, frame.right + 14 - half), frame.bottom + 9);
  }
  line(context, [[frame.left, frame.bottom], [frame.right, frame.bottom]], colours.muted, 1);
}

function drawBytes(context, frame, most, colours) {
  const y = (count) => frame.bottom - (count / most) * frame.height;
  Object.assign(context, { textBaseline: "middle", textAlign: "right", fillStyle: colours.muted });
  for (const [at, text] of listSizes(0, most, 6)) {
    line(context, [[frame.left, y(at)], [frame.right, y(at)]], colours.line, 1);
    context.fillText(text, frame.left - 7, y(at));
  }
  return y;
}

/** Text that can be read on any ground. */
function drawText(context, text, x, y, colour, align) {
  Object.assign(context, { textAlign: align, textBaseline: "bottom", fillStyle: colour, lineWidth: 4,
    strokeStyle: palette().page, lineJoin: "round" });
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}

/** As much of a text as fits. Measuring each letter would take too long: letters are about six pixels wide. */
function fitText(context, text, width) {
  let cut = text.slice(0, Math.floor(width / 4));
  while (cut.length > 2 && context.measureText(cut).width > width) {
    cut = cut.slice(0, Math.min(cut.length - 1, Math.ceil((cut.length * width) / context.measureText(cut).width)));
  }
  return cut.length === text.length || cut.length < 3 ? cut : `${cut.slice(0, -1)}…`;
}

// Charts ------------------------------------------------------------------------------------------------------------

/** `spec`: height, draw, pick, go, mark, say, spanOf (what must be in view), first. Picks are numbers, -1 is none. */
function makeChart(host, spec) {
  const base = make("canvas"), over = make("canvas"), tip = make("div", "tip");
  const chart = { at: -1, last: spec.first, size: { width: 0, height: 0 }, drag: null, tip };
  const mark = () => {
    const context = fitCanvas(over, chart.size.width, chart.size.height);
    if (chart.drag?.moved) drawBrush(context, chart, spec);
    tip.hidden = chart.at < 0 || Boolean(chart.drag?.moved);
    if (tip.hidden) return;
    placeTip(chart, ...spec.mark(context, chart.at, palette()));
  };
  chart.show = (index) => {
    if (index === chart.at && index >= 0) return;
    chart.at = index;
    if (index >= 0) {
      chart.last = index;
      const lines = spec.say(index);
      tip.replaceChildren(...lines.map((text) => make("div", "", text)));
      host.setAttribute("aria-valuenow", index + 1);
      host.setAttribute("aria-valuetext", lines.join(", "));
    }
    mark();
  };
  chart.redraw = () => {
    chart.size = { width: Math.max(240, host.clientWidth), height: spec.height(host.clientWidth) };
    host.style.height = `${chart.size.height}px`;
    spec.draw(fitCanvas(base, chart.size.width, chart.size.height), chart.size, palette());
    mark();
  };
  chart.reset = () => { // what is drawn has changed altogether
    Object.assign(chart, { at: -1, last: spec.first });
    host.setAttribute("aria-valuemax", Math.max(1, spec.count()));
    host.setAttribute("aria-valuetext", spec.say(spec.first).join(", "));
    host.setAttribute("aria-valuenow", spec.first + 1);
    redrawSoon();
  };
  host.replaceChildren(base, over, tip);
  tip.hidden = true;
  const attributes = { tabindex: 0, role: "slider", "aria-valuemin": 1, "aria-roledescription": "chart" };
  Object.entries(attributes).forEach(([key, value]) => host.setAttribute(key, value));
  listenToPointer(host, chart, spec, mark);
  listenToKeys(host, chart, spec);
  redraws.push(chart);
  chart.reset();
  new ResizeObserver(() => host.clientWidth !== chart.size.width && redrawSoon()).observe(host);
  return chart;
}

function placeTip(chart, x, y) {
  const { tip, size } = chart, wide = tip.offsetWidth, left = x + 16 + wide > size.width ? x - 16 - wide : x + 16;
  tip.style.left = `${clamp(left, 0, Math.max(0, size.width - wide))}px`;
  tip.style.top = `${clamp(y + 14, 0, Math.max(0, size.height - tip.offsetHeight))}px`;
}

function drawBrush(context, chart) {
  const frame = frameOf(chart.size), [a, b] = [chart.drag.from, chart.drag.to].sort((p, q) => p - q);
  const { accent } = palette();
  Object.assign(context, { fillStyle: accent, globalAlpha: 0.18 });
  context.fillRect(a, frame.top, b - a, frame.height);
  context.globalAlpha = 1;
  [a, b].forEach((x) => line(context, [[x, frame.top], [x, frame.bottom]], accent, 1.5));
}

function listenToPointer(host, chart, spec, mark) {
  const place = (event) => {
    const corner = host.getBoundingClientRect();
    return [event.clientX - corner.left, event.clientY - corner.top];
  };
  const within = (x) => clamp(x, frameOf(chart.size).left, frameOf(chart.size).right);
  host.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    chart.drag = { from: within(x), to: within(x), moved: false };
    host.setPointerCapture(event.pointerId);
    chart.show(spec.pick(x, y));
  });
  host.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (chart.drag) {
      chart.drag.to = within(x);
      chart.drag.moved ||= Math.abs(chart.drag.to - chart.drag.from) >= DRAG;
      if (chart.drag.moved) return mark();
    }
    return chart.show(spec.pick(x, y));
  });
  const end = (zoom) => {
    const { drag } = chart, frame = frameOf(chart.size);
    chart.drag = null;
    if (!drag?.moved) return;
    chart.at = -1;
    if (zoom) setView(...[drag.from, drag.to].sort((a, b) => a - b).map(frame.toTime));
    mark();
  };
  host.addEventListener("pointerup", () => end(true));
  host.addEventListener("pointercancel", () => end(false));
  host.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && !chart.drag && chart.show(-1));
  host.addEventListener("dblclick", resetView);
}

function listenToKeys(host, chart, spec) {
  host.addEventListener("focus", () => host.matches(":focus-visible") && chart.show(chart.last));
  host.addEventListener("blur", () => chart.show(-1));
  host.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const length = view.hi - view.lo, by = { ArrowLeft: -length / 4, ArrowRight: length / 4 }[event.key];
    const middle = () => {
      const [from, to] = spec.spanOf(chart.last), at = (from + Math.min(to, view.hi)) / 2;
      return at > view.lo && at < view.hi ? at : (view.lo + view.hi) / 2;
    };
    const [near, far] = [() => zoomBy(0.5, middle()), () => zoomBy(2, middle())];
    const actions = { "+": near, "=": near, "-": far, _: far, Escape: resetView, 0: resetView };
    if (event.shiftKey && by) setView(view.lo + by, view.hi + by);
    else if (actions[event.key]) actions[event.key]();
    else {
      const next = spec.go(chart.last, event.key);
      if (next === undefined) return;
      reveal(...spec.spanOf(next));
      chart.show(next);
    }
    event.preventDefault();
  });
}

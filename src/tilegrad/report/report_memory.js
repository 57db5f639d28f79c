// Memory over time: bytes stacked by what they are for, other profiles as lines, and the table of what is alive at the
// peak. Runs after report_chart.js.

/** Colour and hatch of each class of blocks. */
const CLASS_STYLES = { weight: ["grey", ""], input: ["yellow", "."], activation: ["sky", ""], gradient: ["green", "\\"],
  workspace: ["vermillion", "x"], unknown: ["blue", ""], "made again": ["orange", "/"],
  "back from the host": ["purple", "-"] };
const CLASS_NAMES = { weight: "weights", input: "inputs", activation: "activations", gradient: "gradients",
  unknown: "memory of unknown use" };
const OTHER_STYLES = [["text", [6, 4]], ["vermillion", [2, 3]], ["purple", [10, 4]], ["blue", [4, 2, 1, 2]]];
const MOST_NAMED = 5; // blocks in the tip
const budgetOf = (place) => (place.device === 0 && place.all ? data.budget_bytes : null);
const otherCurves = ({ device, all }) => (all ? data.others : [])
  .map((other) => ({ ...other, ...other.curves[profile.devices[device]] }))
  .filter((other) => other.bytes?.length)
  .map((other) => ({ ...other, most: other.bytes.reduce((a, b) => Math.max(a, b), 0) }));

const classStyle = (k) => CLASS_STYLES[data.classes[k]];

/** What a class is called; where it is but one block, by the name of that if it is in words. */
function className(k, place) {
  const found = [];
  for (let i = 0; i < blocks.class.length && found.length < 2; i += 1) {
    if (blocks.class[i] === k && isThere(i, place)) found.push(texts[blocks.name[i]]);
  }
  const words = found.length === 1 && found[0].length < 50 && /^[a-z]+ [a-z]|^[a-z]+, [a-z]/.test(found[0]);
  return words ? found[0] : CLASS_NAMES[data.classes[k]] ?? data.classes[k];
}

/** Ticks in view as [pixel, tick]. Those that share a pixel are told by the highest and by the last. */
function thinTicks(starts, totals, frame, count) {
  const points = [];
  let column = -1, px = 0, best = -1, last = -1;
  const flush = () => {
    if (best >= 0) points.push([px, best]);
    if (last !== best) points.push([Math.min(px + 1, frame.right), last]);
  };
  for (let i = lastNotAbove(starts, view.lo, 0, count); i < count && starts[i] <= view.hi; i += 1) {
    const x = Math.max(frame.left, frame.x(starts[i]));
    if (Math.floor(x) === column) {
      if (totals[i] > totals[best]) best = i;
      last = i;
      continue;
    }
    flush();
    [column, px, best, last] = [Math.floor(x), x, i, i];
  }
  flush();
  return points;
}

/** A curve of steps through points, up to `end`; as an area down to `ground` where that is given. */
function stepPath(context, points, yOf, end, ground) {
  context.beginPath();
  if (ground !== undefined) context.moveTo(points[0][0], ground);
  points.forEach(([x, tick], i) => {
    if (i) context.lineTo(x, yOf(points[i - 1][1]));
    context.lineTo(x, yOf(tick));
  });
  context.lineTo(end, yOf(points.at(-1)[1]));
  if (ground !== undefined) context.lineTo(end, ground);
}

/** How high a chart is: a budget far above all that happens would press it flat. */
function highest(most, budget) {
  return (budget !== null && budget <= 1.6 * most ? Math.max(budget, most) : most) * 1.08 || 1;
}

function drawBudget(context, frame, y, most, budget, colours) {
  if (budget === null) return;
  const within = budget <= most, at = within ? y(budget) : frame.top + 14;
  if (within) line(context, [[frame.left, at], [frame.right, at]], colours.budget, 2, [9, 5]);
  const text = `budget ${formatBytes(budget)}${within ? "" : ": above this chart"}`;
  drawText(context, text, frame.left + 8, at - 3, colours.budget, "left");
}

function drawMemory(context, size, colours, memory, others) {
  const frame = frameOf(size), tops = [memory.total[memory.peak] ?? 0, ...others.map((o) => o.most)];
  const most = highest(Math.max(...tops), budgetOf(memory.place));
  drawTimes(context, frame, colours);
  const y = drawBytes(context, frame, most, colours), points = thinTicks(profile.clock, memory.total, frame, tickCount);
  const end = frame.x(Math.min(profile.end, view.hi));
  inside(context, frame, () => {
    for (let k = memory.stack.length - 1; k >= 0 && points.length; k -= 1) {
      stepPath(context, points, (tick) => y(memory.stack[k][tick]), end, frame.bottom);
      context.fillStyle = fillOf(classStyle(memory.used[k]));
      context.fill();
    }
    if (points.length) stepPath(context, points, (tick) => y(memory.total[tick]), end);
    Object.assign(context, { strokeStyle: colours.text, lineWidth: 1.25, lineJoin: "round" });
    if (points.length) context.stroke();
    others.forEach((other, i) => {
      const [colour, dash] = OTHER_STYLES[i % OTHER_STYLES.length];
      const thin = thinTicks(other.start, other.bytes, frame, other.start.length);
      if (!thin.length || other.end < view.lo) return;
      context.setLineDash(dash);
      Object.assign(context, { strokeStyle: colours[colour], lineWidth: 1.75 });
      stepPath(context, thin, (tick) => y(other.bytes[tick]), frame.x(Math.min(other.end, view.hi)));
      context.stroke();
    });
  });
  drawBudget(context, frame, y, most, budgetOf(memory.place), colours);
  return { frame, y };
}

function sayMemory(tick, memory, others, lanes) {
  const at = startOf(tick), running = runningAt(lanes, at).slice(0, 3);
  const alive = aliveAt(memory.place, tick), rest = alive.length - MOST_NAMED;
  return [exactBytes(memory.total[tick]), timed ? `at ${pointTime(at)}, moment ${formatCount(tick + 1)} of ` +
    `${formatCount(tickCount)}` : `in ${sayTime(at)} of ${formatCount(tickCount)}`,
  ...running.map(({ lane, op }) => `${lane.name}: ${sayOperator(op)}`),
  ...others.map((other) => `${other.label}: ${at > other.end ? "has ended by then"
    : formatBytes(other.bytes[lastNotAbove(other.start, at)])}`),
  ...alive.slice(0, MOST_NAMED).map((i) => `${formatBytes(blocks.bytes[i])}  ${texts[blocks.name[i]].slice(0, 80)}` +
    (makerOf(i) ? `, by ${makerOf(i).slice(0, 80)}` : "")),
  ...(rest > 0 ? [`and ${formatCount(rest)} more`] : [])];
}

/** The tick under a pixel; of several the highest, as it is drawn. */
function pickTick(memory, frame, px) {
  if (px < frame.left - 8 || px > frame.right + 8) return -1;
  const last = lastNotAbove(profile.clock, frame.toTime(clamp(px, frame.left, frame.right)));
  let best = last;
  for (let i = last; i >= 0 && frame.x(profile.clock[i]) > px - 1; i -= 1) {
    if (memory.total[i] > memory.total[best]) best = i;
  }
  return best;
}

function makeMemoryChart(lanes, place) {
  let drawn = null, chart = null, memory = stackMemory(place), others = otherCurves(place);
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  const spec = {
    height: (width) => (width < 520 ? 280 : 360), count: () => tickCount, first: memory.peak,
    draw: (context, size, colours) => { drawn = drawMemory(context, size, colours, memory, others); },
    pick: (px) => pickTick(memory, drawn.frame, px),
    spanOf: (tick) => [startOf(tick), startOf(tick + 1)],
    go: (tick, key) => (key in moves ? clamp(tick + moves[key], 0, tickCount - 1)
      : key === "p" || key === "P" ? memory.peak : undefined),
    mark: (context, tick, colours) => {
      const { y } = drawn, frame = frameOf(chart.size);
      const x = clamp(frame.x(startOf(tick)), frame.left, frame.right), top = y(memory.total[tick]);
      const width = clamp(frame.x(startOf(tick + 1)), x + 1, frame.right + 1) - x;
      Object.assign(context, { globalAlpha: 0.14, fillStyle: colours.text });
      context.fillRect(x, frame.top, width, frame.height);
      Object.assign(context, { globalAlpha: 1, strokeStyle: colours.page, lineWidth: 2 });
      line(context, [[x, frame.top], [x, frame.bottom]], colours.text, 1);
      context.beginPath();
      context.arc(x, top, 5, 0, 7);
      context.fill();
      context.stroke();
      return [x, Math.min(top, frame.top + 60)];
    },
    say: (tick) => sayMemory(tick, memory, others, lanes),
  };
  const describe = () => {
    const at = startOf(memory.peak), by = runningAt(lanes, at)[0];
    const peak = exactBytes(memory.total[memory.peak]), whose = data.others.length ? ` of the ${profile.label}` : "";
    byId("memory-caption").textContent = `Bytes${whose} over ` +
      `${timed ? "time" : "steps: how long each takes is not known"}. The peak of ${peak} ` +
      `is ${timed ? "at" : "in"} ${sayTime(at)}${by ? `, when ${sayOperator(by.op)} runs` : ""}.`;
    const dashed = (c, colour, dash) => line(c, [[0, 7], [28, 7]], colour, 2, dash);
    showLegend(byId("memory-legend"), [
      ...memory.used.map((k) => [className(k, memory.place), swatch(classStyle(k))]),
      ...others.map((other, i) => {
        const [colour, dash] = OTHER_STYLES[i % OTHER_STYLES.length];
        return [other.label, (c, p) => dashed(c, p[colour], dash)];
      }),
      ...(budgetOf(memory.place) === null ? [] : [["budget", (c, p) => dashed(c, p.budget, [9, 5])]]),
    ]);
    showPeak(memory);
  };
  byId("memory").hidden = false;
  chart = makeChart(byId("memory-chart"), spec);
  describe();
  return (other) => {
    [memory, others] = [stackMemory(other), otherCurves(other)];
    spec.first = memory.peak;
    chart.reset();
    describe();
  };
}

function showPeak(memory) {
  const alive = aliveAt(memory.place, memory.peak), peak = memory.total[memory.peak];
  const { start, stop } = blocks, life = (i) => (startOf(stop[i]) - startOf(start[i])) * (timed ? unit : 1);
  byId("peak").hidden = !alive.length;
  if (!alive.length) return;
  byId("peak-caption").textContent = `${exactBytes(peak)} in ${formatCount(alive.length)} ` +
    `${alive.length === 1 ? "block" : "blocks"} ${timed ? "at" : "in"} ${sayTime(startOf(memory.peak))}.`;
  showTable(byId("peak-table"), { title: "peak-title", count: alive.length, order: [1, -1], columns: [
    { name: "memory of", unit: "text", get: (row) => texts[blocks.name[alive[row]]] },
    { name: "size", unit: "bytes", get: (row) => blocks.bytes[alive[row]] },
    { name: "of the peak", unit: "share", get: (row) => blocks.bytes[alive[row]] / (peak || 1) },
    { name: "use", unit: "text", get: (row) => data.classes[blocks.class[alive[row]]] },
    { name: "made by", unit: "text", get: (row) => makerOf(alive[row]) },
    { name: `lives for${timed ? "" : " steps"}`, unit: timed ? clockUnit : "count", get: (row) => life(alive[row]) },
  ] });
}

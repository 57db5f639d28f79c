// The timeline: a lane for every thread of the host and every stream of the device, a rectangle for every run of an
// operator; what runs inside another lies below it. Runs after report_map.js.
const PHASE_STYLES = { forward: ["sky", ""], "runs again": ["orange", "/"], backward: ["green", "\\"],
  update: ["grey", "."], "": ["purple", "-"] };
const TYPE_STYLES = [["sky", ""], ["orange", "/"], ["green", "\\"], ["purple", "-"], ["yellow", "."], ["blue", ""],
  ["vermillion", "x"]];
const REST_STYLE = ["grey", ""];
const LANE_HEAD = 20;

/** Style and name of each operator's phase, or of its type: those that take longest have colours of their own. */
function groupOperators(by, work) {
  const styleOf = new Array(operators.name.length), names = new Map();
  if (by === "phase") {
    operators.phase.forEach((text, op) => { styleOf[op] = PHASE_STYLES[texts[text]] ?? REST_STYLE; });
    for (const [name, style] of Object.entries(PHASE_STYLES)) {
      if (styleOf.includes(style)) names.set(name || "other", style);
    }
    return { styleOf, names };
  }
  const totals = new Map();
  operators.type.forEach((type, op) => totals.set(type, (totals.get(type) ?? 0) + (work[op] || 0)));
  const ranked = [...totals.keys()].sort((a, b) => totals.get(b) - totals.get(a)), styles = new Map();
  ranked.slice(0, TYPE_STYLES.length).forEach((type, i) => {
    styles.set(type, TYPE_STYLES[i]);
    names.set(texts[type].slice(0, 40) || "unnamed", TYPE_STYLES[i]);
  });
  if (ranked.length > styles.size) names.set(`${ranked.length - styles.size} other types`, REST_STYLE);
  operators.type.forEach((type, op) => { styleOf[op] = styles.get(type) ?? REST_STYLE; });
  return { styleOf, names };
}

const sayLane = ({ name, side }) => (name === side ? side : `${side}: ${name}`);

/** Where the rows of all lanes lie, from the top. Every span knows its row and its place in it. */
function layLanes(lanes) {
  const count = lanes.reduce((sum, lane) => sum + lane.rows.length, 0);
  const rowHeight = count <= 24 ? 18 : count <= 70 ? 14 : 8;
  const rows = [], heads = [], rowOf = new Map();
  let y = 14;
  for (const lane of lanes) {
    heads.push({ lane, y });
    y += LANE_HEAD;
    for (const row of lane.rows) {
      row.spans.forEach((span) => rowOf.set(span, rows.length));
      rows.push({ ...row, lane, y });
      y += rowHeight;
    }
    y += 6;
  }
  return { rows, heads, rowOf, rowHeight, height: y + 30 };
}

function drawRow(context, frame, row, rowHeight, styleOf, colours) {
  const { start, length, op } = profile.spans, labels = [];
  let column = -1;
  for (let k = lastNotAbove(row.ends, view.lo); k < row.spans.length && row.start[k] <= view.hi; k += 1) {
    const span = row.spans[k], end = start[span] + length[span];
    if (end < view.lo) continue;
    const x = Math.max(frame.left - 2, frame.x(start[span])), w = Math.min(frame.right + 2, frame.x(end)) - x;
    const style = styleOf[op[span]];
    if (w < TINY) { // the first on a pixel stands for all
      if (Math.floor(x) === column) continue;
      column = Math.floor(x);
      context.fillStyle = colours[style[0]];
      context.fillRect(column, row.y, 1, rowHeight - 1);
      continue;
    }
    context.fillStyle = w >= 6 ? fillOf(style) : colours[style[0]];
    context.fillRect(x, row.y, w > 3 ? w - 0.75 : w, rowHeight - 1);
    if (w >= 34 && rowHeight >= 13) labels.push([texts[operators.name[op[span]]], x, w]);
  }
  Object.assign(context, { textAlign: "left", textBaseline: "middle", fillStyle: colours.ink });
  for (const [text, left, w] of labels) {
    const x = Math.max(left, frame.left), cut = fitText(context, text, Math.min(left + w, frame.right) - x - 7);
    if (cut.length > 2) context.fillText(cut, x + 4, row.y + rowHeight / 2);
  }
}

function drawTimeline(context, size, colours, laid, styleOf) {
  const frame = frameOf(size);
  drawTimes(context, frame, colours);
  inside(context, frame, () => laid.rows.forEach((row) =>
    drawRow(context, frame, row, laid.rowHeight, styleOf, colours)));
  for (const { lane, y } of laid.heads) {
    line(context, [[0, y + 0.5], [frame.right, y + 0.5]], colours.line, 1);
    const runs = `${formatCount(lane.count)} ${lane.count === 1 ? "run" : "runs"}`, most = Math.floor(size.width / 9);
    const said = sayLane(lane), text = said.length > most ? `${said.slice(0, most)}…` : said;
    context.font = "600 12px system-ui, sans-serif";
    drawText(context, text, 2, y + 18, colours.text, "left");
    const width = context.measureText(text).width;
    context.font = "12px system-ui, sans-serif";
    drawText(context, runs, 12 + width, y + 18, colours.muted, "left");
  }
}

/** The span under a pixel, or next to it. */
function pickSpan(laid, frame, px, py) {
  const row = laid.rows.find((r) => py >= r.y && py < r.y + laid.rowHeight), { start, length } = profile.spans;
  if (!row || px < frame.left - 4 || px > frame.right + 4) return -1;
  const k = lastNotAbove(row.start, frame.toTime(px));
  let best = -1, near = 4;
  for (let i = Math.max(0, k - 1); i <= k + 1 && i < row.spans.length; i += 1) {
    const span = row.spans[i], from = frame.x(start[span]), to = frame.x(start[span] + length[span]);
    const away = Math.max(from - px, px - to, 0);
    if (away <= near && (away < near || best < 0)) [best, near] = [span, away];
  }
  return best;
}

function goSpan(laid, span, key) {
  const at = laid.rowOf.get(span), row = laid.rows[at], { start, length } = profile.spans;
  const place = row.spans.indexOf(span), middle = start[span] + length[span] / 2;
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  if (key in moves) return row.spans[clamp(place + moves[key], 0, row.spans.length - 1)];
  if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
  const next = laid.rows[clamp(at + (key === "ArrowUp" ? -1 : 1), 0, laid.rows.length - 1)];
  return next.spans[lastNotAbove(next.start, middle)];
}

function saySpan(span, row, facts) {
  const { op: ops, start, length, wait } = profile.spans, op = ops[span], { work, host } = facts, { lane } = row;
  const rate = (column, name) => {
    const found = rateOf(column, op, work);
    return found === null ? [] : [`${formatRate(found)} ${name}`];
  };
  const more = [textOf(operators.module, op), textOf(operators.shapes, op), textOf(operators.kernel, op)];
  const other = lane.side === "host" ? known(work[op]) : known(host[op]);
  const type = [texts[operators.type[op]], textOf(operators.phase, op)].filter(Boolean).join(", ");
  return [texts[operators.name[op]], type, ...more.filter(Boolean),
    sayLane(lane),
    timed ? `from ${sayTime(start[span])}, for ${sayLength(length[span])}` : sayTime(start[span]),
    ...(wait[span] ? [`the first ${sayLength(wait[span])} waiting`] : []),
    ...(timed && other !== null && host[op] !== work[op]
      ? [`${formatSeconds(other)} on the ${lane.side === "host" ? "device" : "host"}`] : []),
    ...rate(operators.flops, "GFLOP/s"), ...rate(operators.bytes, "GB/s")];
}

function makeTimeline(lanes, facts) {
  const laid = layLanes(lanes), modes = operators.phase ? ["phase", "type"] : ["type"], list = byId("timeline-legend");
  let groups = null, size = { width: 0, height: 0 };
  const regroup = (mode) => {
    groups = groupOperators(modes[mode], facts.work);
    showLegend(list, [...groups.names].map(([name, style]) => [name, swatch(style)]));
  };
  regroup(0);
  byId("timeline").hidden = false;
  byId("colour-label").hidden = modes.length < 2;
  fillSelect(byId("colour"), modes, (mode) => {
    regroup(mode);
    redrawSoon();
  });
  const left = profile.lanes.length - lanes.length;
  byId("timeline-caption").textContent = [
    `${formatCount(profile.spans.op.length)} runs ${timed ? "over time" : "in order of steps"}, a lane for each ` +
    "thread of the host and each stream of the device.",
    profile.one_clock ? "" : "Host and device have clocks of their own: each side begins at its own zero, and " +
    "moments of one cannot be compared with those of the other.",
    left > 0 ? `${formatCount(left)} lanes with the fewest runs are left out.` : ""].filter(Boolean).join(" ");
  makeChart(byId("timeline-chart"), {
    height: () => laid.height, count: () => profile.spans.op.length, first: laid.rows[0].spans[0],
    draw: (context, drawn, colours) => {
      size = drawn;
      drawTimeline(context, drawn, colours, laid, groups.styleOf);
    },
    pick: (px, py) => pickSpan(laid, frameOf(size), px, py),
    spanOf: (span) => [profile.spans.start[span], profile.spans.start[span] + profile.spans.length[span]],
    go: (span, key) => goSpan(laid, span, key),
    mark: (context, span, colours) => {
      const frame = frameOf(size), row = laid.rows[laid.rowOf.get(span)], { start, length } = profile.spans;
      const x = clamp(frame.x(start[span]), frame.left, frame.right);
      const w = clamp(frame.x(start[span] + length[span]), x + 1, frame.right + 1) - x;
      Object.assign(context, { strokeStyle: colours.text, lineWidth: 2 });
      context.strokeRect(x, row.y - 0.5, w, laid.rowHeight);
      return [x + Math.min(w, 60), row.y + laid.rowHeight - 6];
    },
    say: (span) => saySpan(span, laid.rows[laid.rowOf.get(span)], facts),
  });
}

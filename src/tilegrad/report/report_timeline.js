// The timeline: a lane for every thread of the host and every stream of the device, a rectangle for every run of an
// operator. What runs inside another lies below it; in the view by module, every run lies below its modules. What is
// drawn is a table of bars: start, length, and functions of a bar: text, style, say. Runs after report_map.js.
const PHASE_STYLES = { forward: ["sky", ""], "runs again": ["orange", "/"], backward: ["green", "\\"],
  update: ["grey", "."], "": ["purple", "-"] };
const TYPE_STYLES = [["sky", ""], ["orange", "/"], ["green", "\\"], ["purple", "-"], ["yellow", "."], ["blue", ""],
  ["vermillion", "x"]];
const REST_STYLE = ["grey", ""];
const LANE_HEAD = 20;
const MOST_DEEP = 20; // modules inside modules

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
function layLanes(lanes, table) {
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
  return { table, rows, heads, rowOf, rowHeight, height: y + 30 };
}

function drawRow(context, frame, row, { table: { start, length, text: textAt, style: styleAt }, rowHeight }, colours) {
  const labels = [];
  let column = -1;
  for (let k = lastNotAbove(row.ends, view.lo); k < row.spans.length && row.start[k] <= view.hi; k += 1) {
    const span = row.spans[k], end = start[span] + length[span];
    if (end < view.lo) continue;
    const x = Math.max(frame.left - 2, frame.x(start[span])), w = Math.min(frame.right + 2, frame.x(end)) - x;
    const style = styleAt(span);
    if (w < TINY) { // the first on a pixel stands for all
      if (Math.floor(x) === column) continue;
      column = Math.floor(x);
      context.fillStyle = colours[style[0]];
      context.fillRect(column, row.y, 1, rowHeight - 1);
      continue;
    }
    context.fillStyle = w >= 6 ? fillOf(style) : colours[style[0]];
    context.fillRect(x, row.y, w > 3 ? w - 0.75 : w, rowHeight - 1);
    if (w >= 34 && rowHeight >= 13) labels.push([textAt(span), x, w]);
  }
  Object.assign(context, { textAlign: "left", textBaseline: "middle", fillStyle: colours.ink });
  for (const [text, left, w] of labels) {
    const x = Math.max(left, frame.left), cut = fitText(context, text, Math.min(left + w, frame.right) - x - 7);
    if (cut.length > 2) context.fillText(cut, x + 4, row.y + rowHeight / 2);
  }
}

function drawTimeline(context, size, colours, laid) {
  const frame = frameOf(size);
  drawTimes(context, frame, colours);
  inside(context, frame, () => laid.rows.forEach((row) =>
    drawRow(context, frame, row, laid, colours)));
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
  const row = laid.rows.find((r) => py >= r.y && py < r.y + laid.rowHeight), { start, length } = laid.table;
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
  const at = laid.rowOf.get(span), row = laid.rows[at], { start, length } = laid.table;
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
  const more = ["module", "source", "shapes", "kernel"].map((key) => textOf(operators[key], op));
  const other = lane.side === "host" ? known(work[op]) : known(host[op]);
  const type = [texts[operators.type[op]], textOf(operators.phase, op)].filter(Boolean).join(", ");
  return [texts[operators.name[op]], type, ...more.filter(Boolean),
    sayLane(lane),
    timed ? `from ${pointTime(start[span])}, for ${pointLength(length[span])}` : sayTime(start[span]),
    ...(wait[span] ? [`the first ${pointLength(wait[span])} waiting`] : []),
    ...(timed && other !== null && host[op] !== work[op]
      ? [`${formatTime(other, MEASURED)} on the ${lane.side === "host" ? "device" : "host"}`] : []),
    ...rate(operators.flops, "GFLOP/s"), ...rate(operators.bytes, "GB/s")];
}

// By module ----------------------------------------------------------------------------------------------------------

/** Stretches of a lane that belong to one module, and the runs below them. A stretch ends where the phase does. */
function stackModules(lane, bars) {
  const { op, start, length } = profile.spans, rows = [], open = [];
  const list = lane.rows.flatMap((row) => [...row.spans]).sort((a, b) => start[a] - start[b] || length[b] - length[a]);
  const put = (depth, bar) => {
    (rows[depth] ??= []).push(bars.push(bar) - 1);
    return bar;
  };
  for (const span of list) {
    const path = textOf(operators.module, op[span]), phase = textOf(operators.phase, op[span]);
    const lost = !path && phase === "backward" && open[0]?.phase === phase; // sums of gradients, say: no new stretch
    const parts = lost ? open.map((bar) => bar.text) : path ? path.split(".").slice(0, MOST_DEEP) : [];
    const end = start[span] + length[span];
    let same = 0;
    while (same < parts.length && open[same]?.phase === phase && open[same].text === parts[same]) same += 1;
    open.length = same;
    for (let k = same; k < parts.length; k += 1) {
      const name = parts.slice(0, k + 1).join(".");
      open.push(put(k, { text: parts[k], path: name, phase, start: start[span], end, runs: 0, span, lane }));
    }
    open.forEach((bar) => Object.assign(bar, { end: Math.max(bar.end, end), runs: bar.runs + 1 }));
    put(parts.length, { start: start[span], end, span, lane, own: true });
  }
  return Array.from(rows, (row = []) => row);
}

/** Every row in order, and with the ends that its bars and those before them reach. */
function flameLanes(lanes, facts, groups) {
  const bars = [], totals = new Map();
  const stacked = lanes.map((lane) => ({ ...lane, rows: stackModules(lane, bars).filter((row) => row.length) }));
  for (const { path, start, end } of bars) {
    if (!path) continue;
    const sum = totals.get(path) ?? { length: 0, count: 0 };
    totals.set(path, { length: sum.length + end - start, count: sum.count + 1 });
  }
  const { op } = profile.spans, say = (at, row) => {
    const bar = bars[at], whole = totals.get(bar.path), length = bar.end - bar.start;
    return bar.own ? saySpan(bar.span, row, facts) : [bar.path, `${formatCount(bar.runs)} runs, ${pointLength(length)}`,
      ...(bar.phase ? [bar.phase] : []), ...(whole.count > 1
        ? [`in all ${formatCount(whole.count)} stretches of ${pointLength(whole.length)}`] : []),
      `${formatShare(whole.length / profile.end)} of the time drawn`, sayLane(row.lane)];
  };
  const table = { start: Float64Array.from(bars, (bar) => bar.start),
    length: Float64Array.from(bars, (bar) => bar.end - bar.start), say,
    text: (at) => bars[at].text ?? texts[operators.name[op[bars[at].span]]],
    style: (at) => (bars[at].own || groups().by === "phase" ? groups().styleOf[op[bars[at].span]] : REST_STYLE) };
  const rowOf = (list) => {
    let end = 0;
    return { spans: Uint32Array.from(list), start: Float64Array.from(list, (at) => bars[at].start),
      ends: Float64Array.from(list, (at) => (end = Math.max(end, bars[at].end))) };
  };
  return layLanes(stacked.map((lane) => ({ ...lane, rows: lane.rows.map(rowOf) })), table);
}

// The section --------------------------------------------------------------------------------------------------------

function makeTimeline(lanes, facts) {
  const modes = operators.phase ? ["phase", "type"] : ["type"], list = byId("timeline-legend"), { spans } = profile;
  let groups = null, size = { width: 0, height: 0 };
  const regroup = (mode) => {
    groups = { ...groupOperators(modes[mode], facts.work), by: modes[mode] };
    showLegend(list, [...groups.names].map(([name, style]) => [name, swatch(style)]));
  };
  regroup(0);
  const byLane = layLanes(lanes, { start: spans.start, length: spans.length,
    text: (span) => texts[operators.name[spans.op[span]]], style: (span) => groups.styleOf[spans.op[span]],
    say: (span, row) => saySpan(span, row, facts) });
  let laid = byLane;
  byId("timeline").hidden = false;
  byId("colour-label").hidden = modes.length < 2;
  byId("view-label").hidden = !operators.module;
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
  const spec = {
    height: () => laid.height, count: () => laid.table.start.length, first: laid.rows[0].spans[0],
    draw: (context, drawn, colours) => {
      size = drawn;
      drawTimeline(context, drawn, colours, laid);
    },
    pick: (px, py) => pickSpan(laid, frameOf(size), px, py),
    spanOf: (span) => [laid.table.start[span], laid.table.start[span] + laid.table.length[span]],
    go: (span, key) => goSpan(laid, span, key),
    mark: (context, span, colours) => {
      const frame = frameOf(size), row = laid.rows[laid.rowOf.get(span)], { start, length } = laid.table;
      const x = clamp(frame.x(start[span]), frame.left, frame.right);
      const w = clamp(frame.x(start[span] + length[span]), x + 1, frame.right + 1) - x;
      Object.assign(context, { strokeStyle: colours.text, lineWidth: 2 });
      context.strokeRect(x, row.y - 0.5, w, laid.rowHeight);
      return [x + Math.min(w, 60), row.y + laid.rowHeight - 6];
    },
    say: (span) => laid.table.say(span, laid.rows[laid.rowOf.get(span)]),
  };
  const chart = makeChart(byId("timeline-chart"), spec);
  fillSelect(byId("view"), ["lane", "module"], (mode) => {
    chart.show(-1);
    laid = mode ? flameLanes(lanes, facts, () => groups) : byLane;
    spec.first = laid.rows[0].spans[0];
    chart.reset();
  });
}

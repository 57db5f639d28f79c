// The first profile as typed columns: times, lanes of spans, bytes over time by class of block. Draws nothing. Runs
// after report_base.js.
const profile = data.profile;

/** Some columns come as changes from row to row. */
function addUp(changes, numbers) {
  let sum = 0;
  changes.forEach((change, i) => { numbers[i] = sum += change; });
  return numbers;
}
if (profile) {
  const { spans, clock } = profile, count = spans.op.length;
  Object.assign(spans, { op: addUp(spans.op, new Uint32Array(count)),
    start: addUp(spans.start, new Float64Array(count)), length: Float64Array.from(spans.length) });
  profile.clock = addUp(clock, new Float64Array(clock.length));
}
const operators = profile?.operators, blocks = profile?.blocks;
const unit = profile?.unit_s ?? 1, timed = profile?.timed ?? true;
const hasTime = Boolean(profile) && profile.end > 0;
const MOST_ROWS = 240; // of all lanes together

const textOf = (column, i) => (column ? texts[column[i]] : "");
const clockUnit = profile?.predicted ? "predicted" : "seconds"; // of figures beside the charts

/** As many figures as the page has elsewhere. */
const sayTime = (at) => (timed ? show(at * unit, clockUnit) : `step ${formatCount(Math.floor(at) + 1)}`);
const sayLength = (length) => (timed ? show(length * unit, clockUnit) : `${formatCount(length)} steps`);

/** Of what is pointed at: a prediction has a figure more, and a moment one with each tenfold zoom. */
const pointLength = (length, more = 0) => (timed ? formatTime(length * unit, MEASURED + more) : sayLength(length));
const pointTime = (at) => (timed ? pointLength(at, Math.floor(Math.log10(view.most / (view.hi - view.lo)) + 1e-9))
  : sayTime(at));

// Operators ---------------------------------------------------------------------------------------------------------

/** Of every operator when it began and how long it worked: on the device, or on the host where that is all. */
function workOf() {
  const count = operators.name.length, work = new Float64Array(count).fill(NaN);
  const start = new Float64Array(count).fill(NaN), host = new Float64Array(count).fill(NaN);
  const { op, lane, start: starts, length, wait } = profile.spans;
  for (let i = 0; i < op.length; i += 1) { // those of the device come last
    if (profile.lanes[lane[i]][1] === "host") host[op[i]] = length[i] * unit;
    work[op[i]] = (length[i] - wait[i]) * unit;
    start[op[i]] = starts[i];
  }
  return { work, start, host };
}

const known = (number) => (Number.isNaN(number) ? null : number);
const rateOf = (column, op, work) => (timed && column && column[op] !== null && work[op] > 0
  ? column[op] / work[op] / 1e9 : null);

/** "conv2d 'down.0'": an operator in a few words. */
const sayOperator = (op) => {
  const name = texts[operators.name[op]], type = texts[operators.type[op]];
  return name === type || !type ? name : `${type} '${name}'`;
};

// Lanes -------------------------------------------------------------------------------------------------------------

/** Spans of a lane in rows: what runs inside another, or beside it, goes below. `ends`: of each and all before it. */
function packRows(list, most) {
  const { start, length } = profile.spans, rows = [], rounded = timed ? 1 : 0;
  list.sort((a, b) => start[a] - start[b] || length[b] - length[a]);
  for (const i of list) {
    let row = rows.findIndex((r) => r.end <= start[i] + rounded);
    if (row < 0 && rows.length < most) row = rows.push({ end: 0, list: [], ends: [] }) - 1;
    if (row < 0) row = rows.length - 1;
    rows[row].end = Math.max(rows[row].end, start[i] + length[i]);
    rows[row].list.push(i);
    rows[row].ends.push(rows[row].end);
  }
  return rows.map(({ list: spans, ends }) => ({ spans: Uint32Array.from(spans),
    start: Float64Array.from(spans, (i) => start[i]), ends: Float64Array.from(ends) }));
}

/** Threads of the host, then streams of the device; where there are very many, those with most spans. */
function makeLanes() {
  const lists = profile.lanes.map(() => []);
  profile.spans.lane.forEach((lane, i) => lists[lane].push(i));
  const busy = lists.map((_, i) => i).sort((a, b) => lists[b].length - lists[a].length).slice(0, MOST_ROWS);
  const most = clamp(Math.floor(MOST_ROWS / busy.length), 1, 12);
  const order = (i) => `${profile.lanes[i][1] === "host" ? 0 : 1} ${profile.lanes[i][0]}`;
  return busy.sort((a, b) => order(a).localeCompare(order(b), "en", { numeric: true })).map((i) => {
    const [name, side] = profile.lanes[i];
    return { name: name || side, side, count: lists[i].length, rows: packRows(lists[i], most) };
  });
}

/** What runs at a moment of memory's clock: in each lane the innermost span. */
function runningAt(lanes, at) {
  const found = [];
  for (const lane of lanes) {
    if (profile.clock_side !== "both" && profile.clock_side !== lane.side) continue;
    for (const row of [...lane.rows].reverse()) {
      const span = row.spans[lastNotAbove(row.start, at)], { start, length } = profile.spans;
      if (start[span] > at || start[span] + length[span] <= at) continue;
      found.push({ lane, op: profile.spans.op[span] });
      break;
    }
  }
  return found;
}

// Memory ------------------------------------------------------------------------------------------------------------

const tickCount = profile?.clock.length ?? 0;
const startOf = (tick) => (tick < tickCount ? profile.clock[tick] : profile.end);

/** Whose memory is shown: that of a device, all of it or without what was handed in from outside. */
function listPlaces() {
  return profile.devices.flatMap((name, device) => {
    const outside = blocks.outside.some((i) => blocks.device[i] === device && blocks.bytes[i]);
    const all = { device, name: name || "device", all: true };
    return outside ? [all, { device, name: `${all.name}, without what came from outside`, all: false }] : [all];
  });
}
const fromOutside = new Set(blocks?.outside);
const isThere = (i, place) => blocks.device[i] === place.device && blocks.bytes[i] > 0 &&
  (place.all || !fromOutside.has(i));

/** Bytes in a place: `stack[k][t]` those of the classes up to k in tick t; the last is all. */
function stackMemory(place) {
  const used = data.classes.map((_, k) => k).filter((k) => blocks.class.some((c, i) => c === k && isThere(i, place)));
  const row = new Map(used.map((k, i) => [k, i])), stack = used.map(() => new Float64Array(tickCount + 1));
  blocks.bytes.forEach((bytes, i) => {
    if (!isThere(i, place)) return;
    const change = stack[row.get(blocks.class[i])];
    change[blocks.start[i]] += bytes;
    change[blocks.stop[i]] -= bytes;
  });
  stack.forEach((change, k) => {
    for (let t = 1; t < tickCount; t += 1) change[t] += change[t - 1];
    if (k) for (let t = 0; t < tickCount; t += 1) change[t] += stack[k - 1][t];
  });
  const total = stack.at(-1) ?? new Float64Array(tickCount);
  let peak = 0;
  for (let t = 1; t < tickCount; t += 1) if (total[t] > total[peak]) peak = t;
  return { place, used, stack, total, peak };
}

/** Blocks alive in a tick, largest first, at most `most`. */
function aliveAt(place, tick, most = Infinity) {
  const found = [];
  for (let i = 0; i < blocks.bytes.length; i += 1) {
    if (blocks.start[i] > tick || tick >= blocks.stop[i]) continue;
    if (isThere(i, place)) found.push(i);
  }
  return found.sort((a, b) => blocks.bytes[b] - blocks.bytes[a] || a - b).slice(0, most);
}

const makerOf = (block) => (blocks.maker[block] < 0 ? null : sayOperator(blocks.maker[block]));

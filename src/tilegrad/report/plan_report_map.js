
// The address map of the report: a rectangle for every lifetime. Runs last, and puts the page together.

/** What takes room, in order of time. Addresses begin above what is always there. */
function listRects() {
  const found = chosen.addresses, base = chosen.memory.resident_bytes;
  return found.bytes.map((bytes, i) => ({ i, bytes, start: found.start[i], stop: found.stop[i],
    low: base + found.offset[i], birth: BIRTHS[found.birth[i]], copied: found.copied[i] }))
    .filter((rect) => rect.bytes > 0 && rect.stop > rect.start)
    .sort((a, b) => a.start - b.start || a.low - b.low);
}

/** Pixels of a rectangle; what is tiny is put on whole pixels, where others like it come to lie, too. */
function toPixels(frame, across, rect) {
  const x = frame.x(across(rect.start)), y = frame.y(rect.low + rect.bytes);
  const w = frame.x(across(rect.stop)) - x, h = frame.y(rect.low) - y;
  const fix = (at, length) => (length >= TINY ? [at, length] : [Math.floor(at), 1 + (length >= 1)]);
  const [left, width] = fix(x, w), [top, height] = fix(y, h);
  return [left, top, width, height];
}

function drawRects(context, frame, rects, boxes, colours) {
  for (const birth of BIRTHS) {
    const seen = new Set(), large = [];
    context.beginPath();
    rects.forEach((rect, k) => {
      if (rect.birth !== birth) return;
      const [x, y, w, h] = boxes[k], small = w <= TINY || h <= TINY, key = small ? `${x},${y},${w},${h}` : "";
      if (seen.has(key)) return;
      if (small) seen.add(key);
      else if (w >= 6 && h >= 6) large.push([x, y, w - 1, h - 1]);
      context.rect(x, y, w > 4 ? w - 1 : w, h > 4 ? h - 1 : h); // a gap between neighbours
    });
    context.fillStyle = colours[birth];
    context.fill();
    hatch(context, large, birth, colours.ink);
  }
  context.fillStyle = colours.ink;
  context.textAlign = "left";
  context.textBaseline = "middle";
  rects.forEach((rect, k) => {
    const [x, y, w, h] = boxes[k];
    if (w < 44 || h < 15) return;
    const text = texts[chosen.addresses.value[rect.i]].slice(0, 80);
    if (context.measureText(text).width < w - 10) context.fillText(text, x + 5, y + h / 2);
  });
}

/** Where a copy to the host begins: a bar with a point, over the height of what is copied. */
function drawCopies(context, frame, across, rects, boxes, colours) {
  rects.forEach((rect, k) => {
    if (rect.copied === null) return;
    const [, y, , h] = boxes[k], x = frame.x(across(rect.copied));
    line(context, [[x, y], [x, y + h]], colours.text, 2, []);
    context.fillStyle = colours.text;
    context.beginPath();
    [[x, y], [x + 6, y + Math.min(8, h)], [x, y + Math.min(16, h)]].forEach(([px, py]) => context.lineTo(px, py));
    context.fill();
  });
}

function sayRect({ i, bytes, start, stop, low, birth, copied }) {
  const { value, type, made_by: madeBy } = chosen.addresses, plan = chosen, count = plan.steps.kind.length;
  const lines = [texts[value[i]], exactBytes(bytes), texts[type[i]], `made by ${texts[madeBy[i]]}`];
  if (birth === "again") lines.push("runs again: it was made before");
  if (birth === "fetch") lines.push("comes back from the host");
  if (copied !== null) lines.push(`copied to the host from step ${copied + 1} on`);
  lines.push(`steps ${start + 1} to ${stop} of ${count}`);
  lines.push(`${formatSeconds(startOf(plan, start))} to ${formatSeconds(startOf(plan, stop))}`);
  return [...lines, `addresses ${formatBytes(low)} to ${formatBytes(low + bytes)}`];
}

function pickRect(rects, boxes, px, py) {
  let best = -1, least = [4, 0]; // pixels away, then area
  boxes.forEach(([x, y, w, h], k) => {
    const away = Math.max(x - px, px - x - w, y - py, py - y - h, 0);
    if (away < least[0] || (away === least[0] && w * h < least[1])) [best, least] = [k, [away, w * h]];
  });
  return best;
}

function goRect(rects, index, key) {
  const moves = { ArrowLeft: index - 1, ArrowRight: index + 1, PageUp: index - 10, PageDown: index + 10, Home: 0,
    End: rects.length - 1 };
  if (key in moves) return Math.max(0, Math.min(rects.length - 1, moves[key]));
  if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
  const { low, start } = rects[index], up = key === "ArrowUp";
  let best = index;
  rects.forEach((rect, k) => { // what lives at the same moment, next in address
    if (rect.start > start || rect.stop <= start || (up ? rect.low <= low : rect.low >= low)) return;
    if (best === index || (up ? rect.low < rects[best].low : rect.low > rects[best].low)) best = k;
  });
  return best;
}

function showMap() {
  const rects = listRects(), { memory, steps, addresses } = chosen;
  if (!rects.length) return;
  let frame = null, boxes = [], seconds = chosen.time.total_s > 0;
  const across = (step) => (seconds ? startOf(chosen, step) : step);
  const most = memory.resident_bytes + addresses.range_bytes;
  byId("map").hidden = false;
  byId("map-axis").hidden = !seconds;
  const redraw = makeChart(byId("map-chart"), {
    height: 520, count: rects.length, first: 0,
    draw: (context, size, colours) => {
      const axes = { seconds, xMost: across(steps.kind.length), yMost: highest(most), gap: 8 };
      frame = drawFrame(context, size, colours, axes);
      boxes = rects.map((rect) => toPixels(frame, across, rect));
      const ground = frame.y(memory.resident_bytes);
      context.fillStyle = colours.resident;
      context.fillRect(frame.left, ground, frame.width, frame.y(0) - ground);
      drawRects(context, frame, rects, boxes, colours);
      drawCopies(context, frame, across, rects, boxes, colours);
      drawLevels(context, frame, axes.yMost, [budgetLine(colours)], colours);
    },
    pick: (px, py) => pickRect(rects, boxes, px, py),
    go: (index, key) => goRect(rects, index, key),
    mark: (context, index, colours) => {
      const [x, y, w, h] = boxes[index];
      Object.assign(context, { strokeStyle: colours.page, lineWidth: 5 });
      context.strokeRect(x, y, w, h);
      Object.assign(context, { strokeStyle: colours.text, lineWidth: 2.5 });
      context.strokeRect(x, y, w, h);
      return [x + Math.min(w, 60), y];
    },
    say: (index) => sayRect(rects[index]),
  });
  byId("map-axis").addEventListener("change", (event) => {
    seconds = event.target.value === "time";
    redraw();
  });
  captionMap(rects, most);
}

function captionMap(rects, most) {
  byId("map-caption").textContent = `Where everything that comes and goes lies, above the ` +
    `${formatBytes(chosen.memory.resident_bytes)} that are always there: ${rects.length.toLocaleString("en")} ` +
    `lifetimes in ${formatBytes(most)}. A value that runs again or comes back from the host has several.`;
  const has = (birth) => rects.some((rect) => rect.birth === birth);
  const names = { activation: "activation", gradient: "gradient", again: "made again", fetch: "back from the host" };
  showLegend(byId("map-legend"), [
    ...BIRTHS.filter(has).map((birth) => [names[birth], (c, p) => swatch(c, p[birth], birth, p)]),
    ...(rects.some((rect) => rect.copied !== null) ? [["a copy to the host begins", (c, p) => {
      line(c, [[11, 0], [11, 14]], p.text, 2, []);
      c.fillStyle = p.text;
      c.beginPath();
      [[11, 0], [18, 7], [11, 14]].forEach(([x, y]) => c.lineTo(x, y));
      c.fill();
    }]] : []),
    ["always there", (c, p) => swatch(c, p.resident, "", p)],
    ["budget", (c, p) => line(c, [[0, 7], [28, 7]], p.budget, 2, [9, 5])],
  ]);
}

showHeader();
showCandidates();
showCurves();
if (chosen.addresses && chosen.steps.start_s) showMap();
if (chosen.memory) showPeak();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((redraw) => redraw()));

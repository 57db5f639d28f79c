// Tiles over the image and over every node, forward and backward: what a tile makes, is handed, hands on and reads.
// Steps can be played. Runs after report_scatter.js.
const tiles = data.tiles;
const LEFT_SPACE = 46, TOP_SPACE = 10, BOTTOM_SPACE = 22;
const LEAST = 3; // pixels: a halo of one row is seen, too
const PARTS = { // what a part of a value is, and how it is drawn; in this order
  done: ["done before", ["grey", ""]],
  made: ["made in this tile", ["sky", ""]],
  first: ["read here for the first time", ["sky", ""]],
  gradient: ["gradient complete with this tile", ["green", "\\"]],
  received: ["handed over by tiles before", ["orange", "/"]],
  again: ["read before, and here again", ["orange", "/"]],
  back: ["its gradient goes back to tiles before", ["orange", "/"]],
  unused: ["made for others: its gradient is theirs", ["orange", "/"]],
  on: ["handed on to tiles after", ["purple", "-"]],
  added: ["gradient from tiles after is added", ["purple", "-"]],
  twice: ["made by other tiles, too", ["vermillion", "x"]],
  sum: ["added to the gradient of other tiles", ["vermillion", "x"]],
  read: ["read for the node", ["yellow", "."]],
};

// Boxes: an interval along each drawn axis ---------------------------------------------------------------------------

const tileCount = tiles?.grid.reduce((count, n) => count * n, 1) ?? 0;
const isForward = (step) => step < tileCount;
const tileAt = (step) => (isForward(step) ? step : 2 * tileCount - 1 - step);

/** A tile's place along each axis. */
function placeOf(tile) {
  const place = {};
  [...tiles.tiled].reverse().reduce((rest, axis) => {
    const count = tiles.grid[tiles.tiled.indexOf(axis)];
    place[axis] = rest % count;
    return Math.floor(rest / count);
  }, tile);
  return place;
}

/** The box of a tile on the drawn axes; an axis that is not cut is whole. */
function boxOf(sides, value, place) {
  return tiles.drawn.map((axis) => (sides[axis] ? sides[axis].slice(2 * place[axis], 2 * place[axis] + 2)
    : [0, value.sizes[axis] ?? 1]));
}
const wholeOf = (value) => boxOf({}, value, {});
const isEmpty = (box) => box.some(([lo, hi]) => hi <= lo);
const meet = (a, b) => a.map(([lo, hi], k) => [Math.max(lo, b[k][0]), Math.min(hi, b[k][1])]);

/** What of `box` lies outside of `inner`: at most two boxes for each axis. */
function without(box, inner) {
  const found = [], rest = box.map((side) => [...side]);
  if (isEmpty(meet(box, inner))) return isEmpty(box) ? [] : [box];
  rest.forEach(([lo, hi], k) => {
    const [from, to] = meet(box, inner)[k];
    for (const side of [[lo, from], [to, hi]]) {
      if (side[1] > side[0]) found.push(rest.map((other, j) => (j === k ? side : [...other])));
    }
    rest[k] = [from, to];
  });
  return found.filter((part) => !isEmpty(part));
}

/** Boxes of other tiles where they meet this one's. */
function meetings(value, sides, place, box) {
  const found = [];
  for (let tile = 0; tile < tileCount; tile += 1) {
    const other = placeOf(tile);
    if (tiles.tiled.every((axis) => other[axis] === place[axis])) continue;
    if (tiles.tiled.some((axis) => !tiles.drawn.includes(axis) && other[axis] !== place[axis])) continue;
    const both = meet(box, boxOf(sides, value, other));
    if (!isEmpty(both)) found.push(both);
  }
  return found;
}

/** Parts of a value in a step: [name, box]. */
function partsOf(value, step) {
  const place = placeOf(tileAt(step)), own = boxOf(value.own, value, place), held = boxOf(value.held, value, place);
  const forward = isForward(step), isRead = !value.reads.length, name = (part) => (box) => [part, box];
  if (tiles.mode === "stream") {
    const before = forward ? (isRead ? "again" : "received") : "back", handed = meetings(value, value.held, place, own);
    return [[forward ? (isRead ? "first" : "made") : "gradient", own], ...without(held, own).map(name(before)),
      ...(isRead && forward ? [] : handed.map(name(forward ? "on" : "added")))];
  }
  if (!forward && tiles.mode === "gather") {
    const complete = meet(boxOf(value.complete, value, place), own);
    return [["gradient", complete], ...without(own, complete).map(name("unused"))];
  }
  return [[forward ? (isRead ? "first" : "made") : "gradient", own],
    ...meetings(value, value.own, place, own).map(name(forward ? (isRead ? "again" : "twice") : "sum"))];
}

const sayBox = (box) => tiles.drawn.map((axis, k) => `${axis} ${box[k][0]}:${box[k][1]}`).join(", ");
const sayTile = (tile) => `tile [${tiles.tiled.map((axis) => placeOf(tile)[axis]).join(", ")}]`;

// Panels -------------------------------------------------------------------------------------------------------------

/** One value as a picture: `state` has the step and the node, `valueOf` says which value is drawn. */
function makePanel(state, valueOf, show) {
  const title = make("h3"), canvas = make("canvas"), tip = make("div", "tip");
  const host = make("div", "picture", canvas, tip);
  const panel = { host: make("figure", "", title, host), redraw: () => {} };
  const shape = () => {
    const value = valueOf(), [down, across] = tiles.drawn.length > 1 ? tiles.drawn : [null, tiles.drawn[0]];
    const width = Math.max(120, host.clientWidth), inner = width - LEFT_SPACE - 8;
    const wide = value?.sizes[across] ?? 1, high = down ? value?.sizes[down] ?? 1 : 1;
    const height = down ? clamp(inner * high / wide, 40, 420) : 60;
    return { value, width, height: height + TOP_SPACE + BOTTOM_SPACE, wide, high,
      x: (at) => LEFT_SPACE + at * inner / wide, y: (at) => TOP_SPACE + at * height / high,
      rect: (box) => (down ? [box[1], box[0]] : [box[0], [0, 1]]) };
  };
  const find = (event) => {
    const area = canvas.getBoundingClientRect(), { value, x, y, wide, high, rect } = shape();
    const at = [(event.clientX - area.left - x(0)) / (x(1) - x(0)), (event.clientY - area.top - y(0)) / (y(1) - y(0))];
    if (!value || at[0] < 0 || at[1] < 0 || at[0] >= wide || at[1] >= high) return -1;
    const here = placeOf(tileAt(state.step));
    for (let tile = 0; tile < tileCount; tile += 1) {
      const place = placeOf(tile), sides = rect(boxOf(value.share, value, place));
      if (tiles.tiled.some((axis) => !tiles.drawn.includes(axis) && place[axis] !== here[axis])) continue;
      if (sides.every(([lo, hi], k) => at[k] >= lo && at[k] < hi)) return tile;
    }
    return -1;
  };
  panel.redraw = () => {
    const frame = shape();
    panel.host.hidden = !frame.value;
    if (!frame.value) return;
    title.textContent = panel.title(frame.value);
    drawTiles(fitCanvas(canvas, frame.width, frame.height), frame, state, panel.parts(frame.value, state.step));
  };
  panel.used = () => (valueOf() ? panel.parts(valueOf(), state.step).filter(([, box]) => !isEmpty(box)) : [])
    .map(([part]) => part);
  host.addEventListener("pointermove", (event) => {
    const tile = find(event);
    tip.hidden = tile < 0;
    if (tile < 0) return;
    tip.replaceChildren(...sayTileAt(valueOf(), isForward(state.step) ? tile : 2 * tileCount - 1 - tile)
      .map((text) => make("div", "", text)));
    const area = host.getBoundingClientRect();
    placeTip({ tip, size: area }, event.clientX - area.left, event.clientY - area.top);
  });
  host.addEventListener("pointerleave", () => { tip.hidden = true; });
  host.addEventListener("click", (event) => {
    const tile = find(event);
    if (tile >= 0) show(isForward(state.step) ? tile : 2 * tileCount - 1 - tile, state.node);
  });
  tip.hidden = true;
  redraws.push(panel);
  new ResizeObserver(() => canvas.clientWidth !== host.clientWidth && redrawSoon()).observe(host);
  return panel;
}

function drawTiles(context, frame, state, parts) {
  const colours = palette(), { value, x, y, wide, high, rect } = frame, steps = isForward(state.step);
  const fill = (box, style, alpha) => {
    const [[left, right], [top, bottom]] = rect(box);
    Object.assign(context, { fillStyle: style, globalAlpha: alpha });
    const [w, h] = [x(right) - x(left), y(bottom) - y(top)].map((length) => Math.max(LEAST, length));
    context.fillRect(Math.min(x(left), x(wide) - w), Math.min(y(top), y(high) - h), w, h);
    context.globalAlpha = 1;
  };
  const outline = (box, style, width) => {
    const [[left, right], [top, bottom]] = rect(box);
    Object.assign(context, { strokeStyle: style, lineWidth: width });
    context.strokeRect(x(left), y(top), x(right) - x(left), y(bottom) - y(top));
  };
  const here = placeOf(tileAt(state.step)), full = wholeOf(value);
  fill(full, colours.card, 1);
  for (let tile = 0; tile < tileCount; tile += 1) {
    const place = placeOf(tile), done = steps ? tile < tileAt(state.step) : tile > tileAt(state.step);
    if (tiles.tiled.some((axis) => !tiles.drawn.includes(axis) && place[axis] !== here[axis])) continue;
    const box = boxOf(value.share, value, place);
    if (isEmpty(box)) continue;
    if (done) fill(box, colours.grey, 0.4);
    context.globalAlpha = 0.45;
    outline(box, colours.muted, 1);
    context.globalAlpha = 1;
  }
  parts.filter(([, box]) => !isEmpty(box)).forEach(([part, box]) => fill(box, fillOf(PARTS[part][1]), 1));
  outline(full, colours.muted, 1.5);
  const [down, across] = tiles.drawn.length > 1 ? tiles.drawn : ["", tiles.drawn[0]];
  Object.assign(context, { fillStyle: colours.muted, textBaseline: "top", textAlign: "left" });
  context.fillText(`${across} 0`, x(0), y(high) + 5);
  Object.assign(context, { textAlign: "right" });
  context.fillText(formatCount(wide), x(wide), y(high) + 5);
  if (down) {
    context.fillText(`${down} 0`, LEFT_SPACE - 5, y(0));
    context.textBaseline = "bottom";
    context.fillText(formatCount(high), LEFT_SPACE - 5, y(high));
  }
}

/** What a tile does with a value, in lines; equal boxes once. */
function sayTileAt(value, step) {
  const lines = [`${sayTile(tileAt(step))}, ${isForward(step) ? "forward" : "backward"}`];
  for (const [part, box] of partsOf(value, step)) if (!isEmpty(box)) lines.push(`${PARTS[part][0]}: ${sayBox(box)}`);
  for (const [at, sides] of isForward(step) ? value.reads : []) {
    const from = tiles.values[at], box = boxOf(sides, from, placeOf(tileAt(step)));
    if (isEmpty(box)) continue;
    const whole = wholeOf(from);
    const pads = tiles.drawn.map((axis, k) => [axis, Math.max(0, -box[k][0]), Math.max(0, box[k][1] - whole[k][1])])
      .filter(([, before, after]) => before || after);
    lines.push(`reads ${from.name}: ${sayBox(meet(box, whole))}` +
      `${pads.length ? `, padding ${pads.map(([axis, a, b]) => `${axis} ${a}+${b}`).join(", ")}` : ""}`);
  }
  return lines;
}

// The section --------------------------------------------------------------------------------------------------------

function showTiles() {
  const { values } = tiles, state = { step: 0, node: 0, timer: 0 }, last = 2 * tileCount - 1;
  const section = byId("tiles"), pick = byId("tiles-node"), slide = byId("tiles-step"), play = byId("tiles-play");
  const show = (step, node) => {
    Object.assign(state, { step: clamp(step, 0, last), node: clamp(node, 0, values.length - 1) });
    pick.value = state.node;
    slide.value = state.step + 1;
    const forward = isForward(state.step), { name } = values[state.node];
    slide.setAttribute("aria-valuetext", sayTileAt(values[state.node], state.step).join(", "));
    byId("tiles-status").textContent = `Step ${formatCount(state.step + 1)} of ${formatCount(last + 1)}: ` +
      `${forward ? "forward" : "backward"}, ${sayTile(tileAt(state.step))} at ${name}.`;
    byId("tiles-says").replaceChildren(...sayTileAt(values[state.node], state.step).slice(1)
      .map((text) => make("li", "", text)));
    const used = new Set(["done", ...[image, reads, made].flatMap((panel) => panel.used())]);
    showLegend(byId("tiles-legend"), Object.entries(PARTS).filter(([part]) => used.has(part))
      .map(([, [text, style]]) => [text, swatch(style)]));
    redrawSoon();
  };
  const stop = () => {
    clearInterval(state.timer);
    Object.assign(state, { timer: 0 });
    play.textContent = "Play";
  };
  const start = () => {
    if (state.step === last) show(0, state.node);
    play.textContent = "Stop";
    state.timer = setInterval(() => (state.step === last ? stop() : show(state.step + 1, state.node)),
      clamp(16000 / (last + 1), 60, 700));
  };
  const image = makePanel(state, () => values[0], show), made = makePanel(state, () => values[state.node || -1], show);
  const reads = makePanel(state, () => values[values[state.node].reads.find(([at]) => at > 0)?.[0]], show);
  Object.assign(image, { title: (value) => `the image: ${value.name}`, parts: partsOf });
  Object.assign(made, { title: (value) => `${value.name}: ${value.what}`, parts: partsOf });
  Object.assign(reads, { title: (value) => `what it reads: ${value.name}`, parts: (value, step) => {
    const [, sides] = values[state.node].reads.find(([at]) => at > 0), place = placeOf(tileAt(step));
    const read = ["read", meet(boxOf(sides, value, place), wholeOf(value))];
    return [...partsOf(value, step), ...(isForward(step) ? [read] : [])];
  } });
  fillSelect(pick, values.map((value) => value.name), (node) => show(state.step, node));
  Object.assign(slide, { min: 1, max: last + 1, step: 1 });
  slide.addEventListener("input", () => show(Number(slide.value) - 1, state.node));
  play.addEventListener("click", () => (state.timer ? stop() : start()));
  byId("tiles-panels").append(image.host, reads.host, made.host);
  byId("tiles-panels").addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-Infinity, 0],
      End: [Infinity, 0] }[event.key];
    if (!steps || event.ctrlKey || event.altKey || event.metaKey) return;
    show(state.step + steps[0], state.node + steps[1]);
    event.preventDefault();
  });
  section.hidden = false;
  const middle = tiles.grid.reduce((tile, count) => tile * count + (count >> 1), 0);
  const handed = values.findIndex((value) => value.reads.length && partsOf(value, middle).length > 1);
  show(middle, handed < 0 ? Math.max(0, values.findIndex((value) => value.reads.length)) : handed);
}

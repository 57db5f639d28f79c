// The address map: a rectangle for every block, time across and addresses up; far gaps between arenas are broken.
// Runs after report_memory.js.

/** Blocks that lie somewhere, in order of birth. */
function listRects(place) {
  const found = [];
  blocks.at.forEach((at, i) => {
    if (at >= 0 && isThere(i, place) && blocks.stop[i] > blocks.start[i]) found.push(i);
  });
  return found.sort((a, b) => blocks.start[a] - blocks.start[b] || blocks.at[a] - blocks.at[b]);
}

/** Where a block really lies: numbers of a script are too short for it. */
function addressOf(device, at) {
  const arena = profile.arenas[device].findLast(([drawn]) => drawn <= at);
  return BigInt(arena[2]) + BigInt(at - arena[0]);
}
const hex = (address) => `0x${address.toString(16)}`;

/** Pixels of all rectangles, four numbers each; what is not in view has no width. */
function placeRects(rects, frame, y) {
  const boxes = new Float32Array(4 * rects.length);
  rects.forEach((i, k) => {
    const from = startOf(blocks.start[i]), to = startOf(blocks.stop[i]);
    if (to < view.lo || from > view.hi) return;
    const left = Math.max(frame.left - 2, frame.x(from)), right = Math.min(frame.right + 2, frame.x(to));
    const top = y(blocks.at[i] + blocks.bytes[i]), height = y(blocks.at[i]) - top;
    boxes.set([left, top, Math.max(right - left, 1), Math.max(height, 1)], 4 * k);
  });
  return boxes;
}

function drawRects(context, frame, rects, boxes, colours) {
  const wide = Math.ceil(frame.right) + 3, seen = new Uint8Array(wide * (Math.ceil(frame.bottom) + 3)), labels = [];
  rects.forEach((i, k) => {
    const [x, y, w, h] = boxes.subarray(4 * k, 4 * k + 4), style = classStyle(blocks.class[i]);
    if (!w) return;
    if (w <= TINY && h <= TINY) { // as large as a dot: one of a kind on every pixel
      const at = Math.floor(y) * wide + Math.floor(x), bit = 1 << (blocks.class[i] & 7);
      if (seen[at] & bit) return;
      seen[at] |= bit;
    }
    context.fillStyle = w >= 6 && h >= 6 ? fillOf(style) : colours[style[0]];
    context.fillRect(x, y, w > 4 ? w - 1 : w, h > 4 ? h - 1 : h); // a gap between neighbours
    if (w >= 44 && h >= 15) labels.push([texts[blocks.name[i]], x, y, w, h]);
  });
  Object.assign(context, { textAlign: "left", textBaseline: "middle", fillStyle: colours.ink });
  for (const [text, left, y, wide, h] of labels) {
    const x = Math.max(left, frame.left), w = Math.min(left + wide, frame.right) - x;
    const cut = fitText(context, text, w - 9);
    if (cut.length > 1) context.fillText(cut, x + 5, y + h / 2);
  }
}

/** What breaks the axis, and where each arena begins. */
function drawArenas(context, frame, y, arenas, colours) {
  Object.assign(context, { textBaseline: "middle", textAlign: "right" });
  arenas.forEach(([at, size, base], i) => {
    const top = y(at + size), bottom = y(at);
    context.fillStyle = colours.muted;
    if (bottom - top >= 13) context.fillText(formatBytes(size), frame.left - 7, (top + bottom) / 2);
    if (i) {
      const middle = (bottom + y(arenas[i - 1][0] + arenas[i - 1][1])) / 2, points = [];
      for (let x = frame.left; x <= frame.right; x += 6) points.push([x, middle + (points.length % 2 ? 2 : -2)]);
      line(context, points, colours.muted, 1);
    }
    if (bottom - top >= 30) drawText(context, base, frame.right - 6, bottom - 2, colours.muted, "right");
  });
}

function drawMap(context, size, colours, map) {
  const frame = frameOf(size), { place, rects } = map, arenas = profile.arenas[place.device];
  const [at, length, base] = arenas.at(-1), plain = arenas.length === 1;
  const budget = plain && base === "0x0" ? budgetOf(place) : null, most = highest(at + length, budget);
  let y = (count) => frame.bottom - (count / most) * frame.height;
  drawTimes(context, frame, colours);
  if (plain) y = drawBytes(context, frame, most, colours);
  const boxes = placeRects(rects, frame, y);
  inside(context, frame, () => drawRects(context, frame, rects, boxes, colours));
  if (!plain) drawArenas(context, frame, y, arenas, colours);
  drawBudget(context, frame, y, most, budget, colours);
  return boxes;
}

function pickRect(boxes, px, py) {
  let best = -1, near = 4, area = 0; // pixels away, then area
  for (let k = 0; k < boxes.length; k += 4) {
    const x = boxes[k], y = boxes[k + 1], w = boxes[k + 2], h = boxes[k + 3];
    if (!w) continue;
    const away = Math.max(x - px, px - x - w, y - py, py - y - h, 0);
    if (away < near || (away === near && best >= 0 && w * h < area)) [best, near, area] = [k / 4, away, w * h];
  }
  return best;
}

function goRect(rects, index, key) {
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  if (key in moves) return clamp(index + moves[key], 0, rects.length - 1);
  if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
  const here = rects[index], up = key === "ArrowUp", { at, start, stop } = blocks;
  let best = index;
  rects.forEach((i, k) => { // what lives at the same moment, next in address
    if (start[i] > start[here] || stop[i] <= start[here] || (up ? at[i] <= at[here] : at[i] >= at[here])) return;
    if (best === index || (up ? at[i] < at[rects[best]] : at[i] > at[rects[best]])) best = k;
  });
  return best;
}

function sayRect(device, i) {
  const { name, bytes, start, stop, at } = blocks, maker = blocks.maker[i], address = addressOf(device, at[i]);
  const from = startOf(start[i]), to = startOf(stop[i]);
  return [texts[name[i]], exactBytes(bytes[i]), data.classes[blocks.class[i]],
    ...(maker >= 0 ? [`made by ${sayOperator(maker)}`] : []),
    ...(maker >= 0 && textOf(operators.shapes, maker) ? [textOf(operators.shapes, maker)] : []),
    timed ? `${pointTime(from)} to ${pointTime(to)}, for ${pointLength(to - from)}`
      : `steps ${formatCount(start[i] + 1)} to ${formatCount(stop[i])}`,
    `addresses ${hex(address)} to ${hex(address + BigInt(bytes[i]))}`,
    ...(fromOutside.has(i) ? ["handed in from outside"] : [])];
}

function makeMap(first) {
  const map = { place: first, rects: listRects(first) };
  let boxes = new Float32Array(0), chart = null;
  const spec = {
    height: (width) => (width < 520 ? 320 : 420), count: () => map.rects.length, first: 0,
    draw: (context, size, colours) => {
      boxes = map.rects.length ? drawMap(context, size, colours, map) : new Float32Array(0);
    },
    pick: (px, py) => pickRect(boxes, px, py),
    spanOf: (k) => [startOf(blocks.start[map.rects[k]]), startOf(blocks.stop[map.rects[k]])],
    go: (k, key) => goRect(map.rects, k, key),
    mark: (context, k, colours) => {
      const [x, y, w, h] = boxes.subarray(4 * k, 4 * k + 4);
      Object.assign(context, { strokeStyle: colours.page, lineWidth: 5 });
      context.strokeRect(x, y, w, h);
      Object.assign(context, { strokeStyle: colours.text, lineWidth: 2.5 });
      context.strokeRect(x, y, w, h);
      return [x + Math.min(w, 60), y];
    },
    say: (k) => (k in map.rects ? sayRect(map.place.device, map.rects[k]) : [""]),
  };
  const describe = () => {
    byId("map").hidden = !map.rects.length;
    if (!map.rects.length) return;
    const used = [...new Set(map.rects.map((i) => blocks.class[i]))].sort((a, b) => a - b);
    const arenas = profile.arenas[map.place.device], all = arenas.reduce((sum, arena) => sum + arena[1], 0);
    const where = arenas.length > 1 ? ` in ${arenas.length} stretches of addresses; the gaps between them are cut short`
      : arenas[0][2] === "0x0" ? "" : `, counted from ${arenas[0][2]}`;
    byId("map-caption").textContent =
      `Where each of ${formatCount(map.rects.length)} blocks lies, and when: ${formatBytes(all)} of addresses${where}.`;
    showLegend(byId("map-legend"), used.map((k) => [className(k, map.place), swatch(classStyle(k))]));
  };
  byId("map").hidden = false;
  chart = makeChart(byId("map-chart"), spec);
  describe();
  return (place) => {
    Object.assign(map, { place, rects: listRects(place) });
    describe();
    chart.reset();
  };
}

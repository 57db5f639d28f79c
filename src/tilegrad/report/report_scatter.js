// Time against memory as SVG: all plans, the least time for so much memory as a line, budgets dashed. A plan can be
// pointed at and reached with keys. Runs after report_chart.js.
const SCATTER = { width: 900, height: 340, left: 76, right: 24, top: 22, bottom: 32 };

/** An SVG element; children that are strings become text. */
function makeShape(tag, attributes, ...children) {
  const found = document.createElementNS(byId("scatter-svg").namespaceURI, tag);
  Object.entries(attributes).forEach(([key, value]) => found.setAttribute(key, value));
  found.append(...children);
  return found;
}

function scatterFrame({ memory, times }) {
  const { width, height, left, right, top, bottom } = SCATTER, [low, high] = times;
  return {
    x: (bytes) => left + ((bytes - memory[0]) / (memory[1] - memory[0])) * (width - left - right),
    y: (seconds) => height - bottom - ((Math.min(seconds, high) - low) / (high - low)) * (height - top - bottom),
    end: width - right, ground: height - bottom,
  };
}

function scatterAxes({ memory, times, plain_s: plain, budgets }, { x, y, end, ground }) {
  const parts = [];
  for (const [at, text] of listSizes(...memory, SCATTER.width / 110)) {
    parts.push(makeShape("line", { class: "grid", x1: x(at), x2: x(at), y1: SCATTER.top, y2: ground }),
      makeShape("text", { x: x(at), y: ground + 20, "text-anchor": "middle" }, text));
  }
  for (const [at, text] of listTimes(...times, 5)) {
    const more = plain ? `${at >= plain ? "+" : "−"}${toPlaces(Math.abs((at / plain - 1) * 100), 0)}%` : "";
    parts.push(makeShape("line", { class: "grid", x1: SCATTER.left, x2: end, y1: y(at), y2: y(at) }),
      makeShape("text", { x: SCATTER.left - 6, y: y(at) - 1, "text-anchor": "end" }, text),
      makeShape("text", { x: SCATTER.left - 6, y: y(at) + 12, "text-anchor": "end", class: "small" }, more));
  }
  const within = budgets.filter((budget) => budget >= memory[0] && budget <= memory[1]);
  return [...parts, ...within.map((budget) => makeShape("line",
    { class: "budget", x1: x(budget), x2: x(budget), y1: SCATTER.top, y2: ground }))];
}

/** From each plan on the front to the next: time falls where there is memory for it. */
function frontPath(points, { x, y, end }) {
  const front = points.filter(([, , , , first]) => first);
  const steps = front.map(([bytes, seconds], i) => `${i ? "H" : "M"}${x(bytes)}${i ? "V" : ","}${y(seconds)}`);
  return `${steps.join("")}H${end}`;
}

function sayPlan([bytes, seconds, text, chosen], plain) {
  const extra = plain ? `, ${formatExtra(seconds / plain - 1)} against plain` : "";
  return [text, `peak ${exactBytes(bytes)}`, `${formatPredicted(seconds)}${extra}`, ...(chosen ? [chosen] : [])];
}

/** A chosen plan is filled, a slow one at the end of the axis a triangle. */
function planMark(point, frame, times) {
  const [bytes, seconds, , chosen] = point, [px, py] = [frame.x(bytes), frame.y(seconds)];
  const shape = seconds > times[1] ? makeShape("path", { d: `M${px - 6},${py + 8}h12l-6,-10z` })
    : makeShape("circle", { cx: px, cy: py, r: chosen ? 6.5 : 4.5 });
  return makeShape("g", { class: chosen ? "plan chosen" : "plan", role: "img", tabindex: -1 }, shape);
}

function showScatter(scatter) {
  byId("scatter").hidden = false;
  const svg = byId("scatter-svg"), host = svg.parentElement, tip = make("div", "tip");
  SCATTER.width = clamp(host.clientWidth, 360, 1200); // letters as large as elsewhere on the page
  const frame = scatterFrame(scatter);
  const { points, times, plain_s: plain } = scatter, marks = points.map((point) => planMark(point, frame, times));
  const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  const hide = () => { tip.hidden = true; };
  const show = (i) => {
    const box = marks[i].getBoundingClientRect(), around = host.getBoundingClientRect();
    tip.hidden = false;
    tip.replaceChildren(...sayPlan(points[i], plain).map((text) => make("div", "", text)));
    placeTip({ tip, size: around }, box.x - around.x, box.y - around.y);
  };
  const stopAt = (i) => marks.forEach((mark, k) => mark.setAttribute("tabindex", k === i ? 0 : -1)); // one for Tab
  marks.forEach((mark, i) => {
    mark.setAttribute("aria-label", sayPlan(points[i], plain).join(", "));
    mark.addEventListener("pointerenter", () => show(i));
    mark.addEventListener("focus", () => [stopAt, show].forEach((call) => call(i)));
    ["pointerleave", "blur"].forEach((event) => mark.addEventListener(event, hide));
    mark.addEventListener("keydown", (event) => {
      if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
      marks[clamp(i + moves[event.key], 0, marks.length - 1)].focus();
      event.preventDefault();
    });
  });
  hide();
  stopAt(Math.max(0, points.findIndex(([, , , chosen]) => chosen)));
  svg.setAttribute("viewBox", `0 0 ${SCATTER.width} ${SCATTER.height}`);
  svg.replaceChildren(...scatterAxes(scatter, frame),
    makeShape("path", { class: "front", d: frontPath(points, frame) }), ...marks);
  host.append(tip);
  byId("scatter-caption").textContent = scatter.caption;
}

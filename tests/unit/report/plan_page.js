// Just enough of a browser's page for the report's script: elements, texts, listeners. Says what it then shows.
// In its folder: ids.json (tags of elements, and whether they are hidden), data.json and script.js.
const fs = require("fs"), vm = require("vm");
const read = (name) => fs.readFileSync(name, "utf-8");

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: new Map(), listeners: {}, style: {}, hidden: false });
    Object.assign(this, { clientWidth: 900, offsetWidth: 200, offsetHeight: 90, className: "" });
  }
  append(...items) { this.children.push(...items.map((item) => (item instanceof Element ? item : String(item)))); }
  replaceChildren(...items) { this.children = []; this.append(...items); }
  set textContent(text) { this.children = [String(text)]; }
  get textContent() { return this.children.map((c) => (c instanceof Element ? c.textContent : c)).join(" "); }
  setAttribute(key, value) { this.attributes.set(key, String(value)); }
  getAttribute(key) { return this.attributes.get(key) ?? null; }
  removeAttribute(key) { this.attributes.delete(key); }
  addEventListener(name, call) { this.listeners[name] = call; }
  all(tag) { return this.children.flatMap((c) => (c instanceof Element ? [...(c.tag === tag ? [c] : []), ...c.all(tag)] : [])); }
  querySelector(tag) { return this.all(tag)[0]; }
  getBoundingClientRect() { return { left: 0, top: 0 }; }
  matches() { return true; }
  focus() {}
  fire(name, event = {}) { this.listeners[name]?.({ preventDefault() {}, target: this, ...event }); }
  getContext() { // numbers that are no numbers are found out here
    return new Proxy({}, {
      get: (_, name) => (...args) => {
        if (args.some((a) => typeof a === "number" && !Number.isFinite(a))) throw new Error(`${String(name)}: ${args}`);
        return { width: 20 };
      },
      set: () => true,
    });
  }
}

const elements = Object.fromEntries(Object.entries(JSON.parse(read("ids.json"))).map(([id, [tag, hidden]]) =>
  [id, Object.assign(new Element(tag), { hidden })]));
elements["plan-data"].textContent = read("data.json");
globalThis.window = { devicePixelRatio: 2 };
globalThis.document = { title: "", documentElement: new Element("html"), getElementById: (id) => elements[id],
  createElement: (tag) => new Element(tag) };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.ResizeObserver = class { observe() {} };

vm.runInThisContext(read("script.js"), "script.js");

const walked = {};
for (const id of ["curve-chart", "map-chart"]) {
  const chart = elements[id];
  if (!chart.listeners.keydown) continue;
  const say = () => chart.getAttribute("aria-valuetext");
  chart.fire("focus");
  chart.fire("keydown", { key: "Home" });
  walked[id] = [say()];
  for (let now = null; now !== chart.getAttribute("aria-valuenow");) {
    now = chart.getAttribute("aria-valuenow");
    chart.fire("keydown", { key: "ArrowRight" });
    if (now !== chart.getAttribute("aria-valuenow")) walked[id].push(say());
  }
  for (const key of ["ArrowUp", "ArrowDown", "PageUp", "End", "p", "q", "Escape"]) chart.fire("keydown", { key });
  for (let x = -10; x < 920; x += 7) chart.fire("pointermove", { clientX: x, clientY: x / 2 });
  chart.fire("pointerleave", { pointerType: "mouse" });
  chart.fire("blur");
}
elements["map-axis"].fire("change", { target: { value: "steps" } });
elements["alive-more"].fire("click");
const [head, ...rows] = elements.candidates.all("tr"), peaks = [];
const order = () => elements.candidates.all("tr").slice(1).map((row) => row.all("td")[1].title.match(/\((.*) bytes/)[1]);
for (let i = 0; i < 2; i += 1) {
  head.all("th")[2].querySelector("button").fire("click");
  peaks.push(order());
}
const texts = Object.fromEntries(Object.entries(elements).filter(([id]) => id !== "plan-data")
  .map(([id, element]) => [id, element.textContent]));
const hidden = Object.keys(elements).filter((id) => elements[id].hidden);
console.log(JSON.stringify({ texts, hidden, walked, peaks, rows: rows.length, title: document.title }));

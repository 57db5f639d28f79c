// The report's ground: its data, numbers as text, and elements. What comes from #page-data reaches the page as text or
// on a canvas, never as markup (rule H1). Runs first.
"use strict";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("page-data").textContent);
byId("page-data").textContent = ""; // once is enough
const { texts } = data;
const MIB = 2 ** 20, GIB = 2 ** 30;

// Numbers -----------------------------------------------------------------------------------------------------------

/** As html_text.py does it: MiB and GiB alone. */
function formatBytes(count) {
  const [size, unit] = Math.abs(count) >= GIB ? [count / GIB, "GiB"] : [count / MIB, "MiB"], most = Math.abs(size);
  if (count === 0) return "0 MiB";
  if (most < 0.0001) return "<0.0001 MiB";
  return `${size.toFixed(most >= 100 ? 0 : most >= 10 ? 1 : most >= 0.1 ? 2 : 4)} ${unit}`;
}
const formatCount = (count) => count.toLocaleString("en");
const exactBytes = (count) => `${formatBytes(count)} (${formatCount(count)} bytes)`;

function formatSeconds(seconds) {
  const most = Math.abs(seconds), [factor, unit] = most >= 1 ? [1, "s"] : most >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const size = seconds * factor, whole = Math.abs(size);
  if (seconds === 0) return "0 s";
  return `${size.toFixed(whole >= 1000 ? 0 : whole >= 100 ? 1 : whole >= 10 ? 2 : 3)} ${unit}`;
}
const formatShare = (share) => `${(share * 100).toFixed(1)}%`;

/** Four figures, as many as mean anything in a rate. */
function formatRate(number) {
  const most = Math.abs(number);
  return most >= 1000 || most === 0 ? formatCount(Math.round(number)) : String(Number(number.toPrecision(4)));
}
const SHOW = { text: String, count: formatCount, bytes: formatBytes, seconds: formatSeconds, share: formatShare,
  rate: formatRate };
const show = (value, unit) => (value === null || value === undefined ? "–"
  : typeof value === "number" ? SHOW[unit](value) : typeof value === "boolean" ? (value ? "yes" : "no") : value);

// Elements ----------------------------------------------------------------------------------------------------------

/** An element; children that are strings become text. */
function make(tag, className, ...children) {
  const found = document.createElement(tag);
  if (className) found.className = className;
  found.append(...children);
  return found;
}

function makeButton(text, call) {
  const button = make("button", "", text);
  button.type = "button";
  button.addEventListener("click", call);
  return button;
}

/** Fills a <select>; `call` gets the place of what is chosen. */
function fillSelect(select, names, call) {
  select.replaceChildren(...names.map((name, i) => {
    const option = make("option", "", name);
    option.value = i;
    return option;
  }));
  select.addEventListener("change", () => call(Number(select.value)));
}

// Search in rising numbers ------------------------------------------------------------------------------------------

/** The last place in [from, to) whose number is not above `x`, at least `from`. */
function lastNotAbove(numbers, x, from = 0, to = numbers.length) {
  let lo = from, hi = to;
  while (hi - lo > 1) {
    const mid = (lo + hi) >> 1;
    if (numbers[mid] <= x) lo = mid;
    else hi = mid;
  }
  return lo;
}

const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

/** Round steps of about `raw`. */
function roundStep(raw) {
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((m) => m * power).find((step) => step >= raw * 0.999);
}

// The report's ground: its data, numbers as text, and elements. What comes from #page-data reaches the page as text or
// on a canvas, never as markup (rule H1). Runs first.
"use strict";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("page-data").textContent);
byId("page-data").textContent = ""; // once is enough
const { texts } = data;

// Numbers -----------------------------------------------------------------------------------------------------------

// Bytes, seconds and shares as units.py formats them, to the last digit: who changes one changes both.
const PREDICTED = 2, MEASURED = 3; // figures of seconds that are known
const BYTE_UNITS = data.decimal ? ["B", "kB", "MB", "GB", "TB"] : ["B", "KiB", "MiB", "GiB", "TiB"];
const BYTE_BASE = data.decimal ? 1000 : 1024, BYTE_EDGE = data.decimal ? 999.5 : 1024;
const TIME_UNITS = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];

/** As Python does it: what lies just between two is rounded to the even one. */
function toPlaces(size, places) {
  const text = size.toFixed(places), between = (Math.abs(size) * 2 ** (places + 1)) % 2 === 1;
  return between && Number(text.at(-1)) % 2 ? (size - Math.sign(size) * 0.25 * 10 ** -places).toFixed(places) : text;
}

/** Of a power of ten: what is nearer to it is rounded up to it. */
const edgeOf = (figures) => 1 - 5 / 10 ** (figures + 1);

/** So many figures of which none is added by rounding: 9.996 is "10.0". `whole`: those before the point stay. */
function toFigures(size, figures, whole = true) {
  const edge = edgeOf(figures);
  let places = figures - 1;
  for (let power = 10; Math.abs(size) >= edge * power; power *= 10) places -= 1;
  if (places < 0 && !whole) return toPlaces(size / 10 ** -places, 0) + "0".repeat(-places);
  return toPlaces(size, Math.max(places, 0));
}

/** The unit that so many bytes are shown in, and how many bytes that is. */
function byteUnit(count) {
  let size = count, power = 0;
  for (; Math.abs(size) >= BYTE_EDGE && power < BYTE_UNITS.length - 1; power += 1) size /= BYTE_BASE;
  return [BYTE_UNITS[power], BYTE_BASE ** power, size];
}

function formatBytes(count) {
  const [unit, bytes, size] = byteUnit(count);
  return `${bytes === 1 ? toPlaces(size, 0) : toFigures(size, 3)}${unit}`;
}
const formatCount = (count) => count.toLocaleString("en");
const exactBytes = (count) => `${formatBytes(count)} (${formatCount(count)} bytes)`;

function formatTime(seconds, figures, whole = true) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  const edge = edgeOf(figures);
  const [unit, size] = TIME_UNITS.find((pair) => Math.abs(seconds) / pair[1] >= edge) ?? TIME_UNITS.at(-1);
  return `${toFigures(seconds / size, figures, whole)} ${unit}`;
}
const formatSeconds = (seconds) => formatTime(seconds, MEASURED);
const formatPredicted = (seconds) => formatTime(seconds, PREDICTED, false);
const formatShare = (share) => `${toPlaces(share * 100, 1)}%`;

/** How much longer than plain a predicted step takes. */
function formatExtra(share) {
  if (!Number.isFinite(share)) return "–";
  const step = 10 ** Math.max(0, toPlaces(Math.abs(share) * 100, 0).length - PREDICTED);
  const percent = Number(toPlaces(share * 100 / step, 0)) * step;
  return `${percent < 0 ? "" : "+"}${percent}%`;
}
const formatRatio = (ratio, figures) =>
  (Math.abs(ratio) < edgeOf(figures) ? toPlaces(ratio, figures) : toFigures(ratio, figures, false));

/** Four figures, as many as mean anything in a rate. */
function formatRate(number) {
  const most = Math.abs(number);
  return most >= 1000 || most === 0 ? formatCount(Math.round(number)) : String(Number(number.toPrecision(4)));
}
const SHOW = { text: String, count: formatCount, bytes: formatBytes, seconds: formatSeconds,
  predicted: formatPredicted, share: formatShare, rate: formatRate,
  extra: formatExtra, ratio: (ratio) => formatRatio(ratio, MEASURED),
  "predicted ratio": (ratio) => formatRatio(ratio, PREDICTED) };
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

// Axes: about `count` round places from `low` to `high`, each with its text: as many digits as tell them apart ------

function listTicks(low, high, count, size, name, least = 0) {
  const step = Math.max(roundStep((high - low) / size / count), least), ticks = [];
  let digits = 0;
  while (digits < 12 && Math.abs(step.toFixed(digits) - step) > step * 1e-6) digits += 1;
  for (let i = Math.ceil(low / size / step - 1e-9); i * step <= (high / size) * (1 + 1e-12); i += 1) {
    ticks.push([i * step * size, `${(i * step).toFixed(digits)}${name}`]);
  }
  return ticks;
}

function listTimes(low, high, count) {
  const [name, size] = TIME_UNITS.find((pair) => high - low >= 2 * pair[1]) ?? TIME_UNITS.at(-1);
  return listTicks(low, high, count, size, ` ${name}`);
}

function listSizes(low, high, count) {
  const [name, size] = byteUnit(high);
  return listTicks(low, high, count, size, name);
}

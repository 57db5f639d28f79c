
// The report of a plan. What comes from #plan-data reaches the page as text or on a canvas, never as markup (rule H1).
"use strict";
const byId = (id) => document.getElementById(id);
/** Characters that break lines or turn the direction of writing would garble the text around a name. */
const clean = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, "\ufffd");
const data = JSON.parse(byId("plan-data").textContent, (_, item) => (typeof item === "string" ? clean(item) : item));
const { chosen, plain, texts, step_kinds: STEPS, births: BIRTHS, budget_bytes: budget } = data;
const MIB = 2 ** 20, GIB = 2 ** 30, ROWS = 20;

// Numbers and elements ----------------------------------------------------------------------------------------------

function formatBytes(count) {
  const [size, unit] = count >= GIB ? [count / GIB, "GiB"] : [count / MIB, "MiB"];
  if (count === 0) return "0 MiB";
  if (size < 0.0001) return "<0.0001 MiB";
  return `${size.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 ? 2 : 4)} ${unit}`;
}
const exactBytes = (count) => `${formatBytes(count)} (${count.toLocaleString("en")} bytes)`;
const formatSeconds = (s) =>
  s === null ? "unknown" : s >= 0.1 ? `${s.toFixed(3)} s` : s >= 1e-5 ? `${(s * 1e3).toFixed(2)} ms`
    : `${(s * 1e6).toFixed(2)} µs`;
const formatShare = (share) => `${(share * 100).toFixed(1)}%`;
const formatExtra = (extra) => (extra === null ? "unknown" : `${extra < 0 ? "" : "+"}${formatShare(extra)}`);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** An element; children that are strings become text. */
function make(tag, className, ...children) {
  const found = document.createElement(tag);
  if (className) found.className = className;
  found.append(...children);
  return found;
}

/** Round numbers from 0 to `most`, about `count` of them. */
function ticks(most, count) {
  const raw = most / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** The last place whose number is not above `x`, at least 0. `numbers` rise. */
function lastNotAbove(numbers, x) {
  let lo = 0, hi = numbers.length;
  while (hi - lo > 1) {
    const mid = (lo + hi) >> 1;
    if (numbers[mid] <= x) lo = mid;
    else hi = mid;
  }
  return lo;
}

// Tables ------------------------------------------------------------------------------------------------------------

/** Columns are {name, key, show, number}: `key` gives what to sort by, `show` the text or the elements. */
function makeTable(table, caption, columns, rows, rowClass) {
  const body = make("tbody"), line = make("tr"), heads = [];
  const fill = (sorted) => body.replaceChildren(...sorted.map((row) => {
    const cells = columns.map((c, i) => {
      const cell = make(i ? "td" : "th", c.number ? "number" : "", ...[c.show(row)].flat());
      if (!i) cell.scope = "row";
      if (c.title) cell.title = c.title(row);
      return cell;
    });
    return make("tr", rowClass(row), ...cells);
  }));
  const compare = (a, b) => (a === null ? 1 : b === null ? -1 : a < b ? -1 : a > b ? 1 : 0);
  columns.forEach((column, i) => {
    const button = make("button", "", column.name), head = make("th", column.number ? "number" : "", button);
    button.type = "button";
    head.scope = "col";
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      fill([...rows].sort((a, b) => sign * compare(columns[i].key(a), columns[i].key(b))));
    });
    heads.push(head);
  });
  line.append(...heads);
  table.replaceChildren(make("caption", "", caption), make("thead", "", line), body);
  fill(rows);
}

function showCandidates() {
  const rows = [...data.candidates].sort((a, b) => b.fits - a.fits || (a.time_s ?? 1e99) - (b.time_s ?? 1e99));
  const pills = (c) => [c.chosen && "chosen", c.plain && "plain"].filter(Boolean).map((t) => make("span", "pill", t));
  const over = (c) => (c.fits ? "yes" : `no, ${formatBytes(c.peak_bytes - budget)} over`);
  const columns = [
    { name: "planner", key: (c) => c.planner, show: (c) => [c.planner, ...pills(c)] },
    { name: "how", key: (c) => c.detail, show: (c) => c.detail },
    { name: "peak", number: true, key: (c) => c.peak_bytes, show: (c) => formatBytes(c.peak_bytes),
      title: (c) => exactBytes(c.peak_bytes) },
    { name: "fits", key: (c) => Math.max(0, c.peak_bytes - budget), show: over },
    { name: "time", number: true, key: (c) => c.time_s, show: (c) => formatSeconds(c.time_s) },
    { name: "extra time", number: true, key: (c) => c.extra_time, show: (c) => formatExtra(c.extra_time) },
    { name: "to and from host", number: true, key: (c) => c.host_bytes,
      show: (c) => (c.host_bytes ? formatBytes(c.host_bytes) : "none"), title: (c) => exactBytes(c.host_bytes) },
  ];
  const caption = `What was tried for ${formatBytes(budget)}. Extra time is against plain. Headings sort.`;
  makeTable(byId("candidates"), caption, columns, rows, (c) => (c.chosen ? "chosen" : c.fits ? "" : "over"));
}

function showPeak() {
  const { memory, steps, alive } = chosen, what = texts[steps.what[memory.peak_step]];
  const rows = alive.map(([value, bytes, source]) => ({ value: texts[value], bytes, source: texts[source] }));
  rows.unshift({ value: "(inputs, parameters and what else is always there)", bytes: memory.resident_bytes,
    source: "" });
  const twice = memory.peak_bytes - rows.reduce((sum, row) => sum + row.bytes, 0);
  if (twice > 0) rows.push({ value: "(old copies of what is just made again)", bytes: twice, source: "" });
  const columns = [
    { name: "value", key: (r) => r.value, show: (r) => r.value },
    { name: "memory", number: true, key: (r) => r.bytes, show: (r) => formatBytes(r.bytes),
      title: (r) => exactBytes(r.bytes) },
    { name: "of the peak", number: true, key: (r) => r.bytes,
      show: (r) => formatShare(r.bytes / (memory.peak_bytes || 1)) },
    { name: "made by", key: (r) => r.source, show: (r) => r.source },
  ];
  const fill = (count) => {
    const shown = rows.slice(0, count), rest = rows.slice(count).reduce((sum, row) => sum + row.bytes, 0);
    const others = `The largest; ${formatBytes(rest)} more in ${rows.length - count} others.`;
    const caption = rest ? others : "Everything, largest first.";
    makeTable(byId("alive"), caption, columns, shown, () => "");
  };
  const more = byId("alive-more");
  more.textContent = `Show all ${rows.length}`;
  more.hidden = rows.length <= ROWS;
  more.addEventListener("click", () => {
    more.hidden = true;
    fill(rows.length);
    byId("alive").querySelector("button").focus();
  });
  byId("peak-caption").textContent =
    `${exactBytes(memory.peak_bytes)} at step ${memory.peak_step + 1} of ${steps.what.length}: ${what}`;
  byId("peak").hidden = false;
  fill(ROWS);
}

function showHeader() {
  const { time, addresses } = chosen, other = plain ?? chosen;
  document.title = `${data.network}: tilegrad plan`;
  byId("network").textContent = data.network;
  byId("summary").textContent = `The fastest plan found for a training step on ${data.machine} in a budget of ` +
    `${formatBytes(budget)}. All figures are predicted.`;
  const waits = time && time.stall_s > 0 ? `, ${formatSeconds(time.stall_s)} of it waiting for copies` : "";
  const facts = [
    ["machine", data.machine, ""],
    ["budget", formatBytes(budget), `${budget.toLocaleString("en")} bytes`],
    ["planner", chosen.planner, chosen.detail],
    ["predicted peak", formatBytes(chosen.peak_bytes),
      `${formatShare(chosen.peak_bytes / budget)} of the budget; plain ${formatBytes(other.peak_bytes)}`],
    ["predicted time", formatSeconds(chosen.time_s), `${formatExtra(chosen.extra_time)} against plain${waits}`],
    ["to and from host", chosen.host_bytes ? formatBytes(chosen.host_bytes) : "none", ""],
  ];
  if (addresses) {
    const exact = addresses.exact ? "as small as can be"
      : `${((addresses.range_bytes / (addresses.live_bytes || 1) - 1) * 100).toFixed(2)}% over what is alive at once`;
    facts.push(["addresses", formatBytes(addresses.range_bytes), `for what comes and goes: ${exact}`]);
  }
  byId("facts").append(...facts.map(([term, value, more]) =>
    make("div", "", make("dt", "", term), make("dd", "", value, ...(more ? [make("small", "", more)] : [])))));
  const notes = [...chosen.notes];
  if (!chosen.memory) notes.push("Of this plan only peak and time are predicted: there is no memory by steps to draw.");
  else if (!addresses) notes.push("Addresses are left to the allocator: there is no address map.");
  byId("notes").append(...notes.map((note) => make("li", "", note)));
  byId("notes").hidden = !notes.length;
}

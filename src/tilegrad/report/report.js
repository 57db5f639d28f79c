// Puts the report together: header, tables, charts that share one stretch of time, and the operators. Runs last.

function showHeader() {
  document.title = `${data.title}: tilegrad`;
  byId("title").textContent = data.title;
  byId("summary").textContent = data.summary;
  byId("facts").append(...data.facts.map(([term, value, more]) =>
    make("div", "", make("dt", "", term), make("dd", "", value, ...(more ? [make("small", "", more)] : [])))));
  byId("facts").hidden = !data.facts.length;
  byId("notes").append(...data.notes.map((note) => make("li", "", note)));
  byId("notes").hidden = !data.notes.length;
}

function showTables() {
  data.tables.forEach((table, i) => {
    const title = make("h2", "", table.title), host = make("div");
    title.id = `table-${i}`;
    const section = make("section", "", title, host);
    section.setAttribute("aria-labelledby", title.id);
    byId("tables").append(section);
    const { caption, rows, marked, mark } = table;
    showTable(host, { title: title.id, caption, count: rows.length, marked: new Set(marked), mark,
      columns: table.columns.map(([name, kind], k) => ({ name, unit: kind, get: (row) => rows[row][k] })) });
  });
}

/** Columns of which nothing is known are left out. */
function showOperators({ work, start, host }) {
  const count = operators.name.length, { flops, bytes } = operators;
  const scaled = (column) => (op) => (column[op] === null ? null : column[op] / 1e9);
  const hosted = host.some((seconds, op) => !Number.isNaN(seconds) && seconds !== work[op]);
  const word = (column) => (op) => textOf(column, op) || null;
  const columns = [
    { name: "operator", unit: "text", get: word(operators.name) },
    { name: "type", unit: "text", get: word(operators.type) },
    operators.module && { name: "module", unit: "text", get: word(operators.module) },
    operators.source && { name: "written in", unit: "text", get: word(operators.source) },
    operators.phase && { name: "phase", unit: "text", get: word(operators.phase) },
    { name: "no.", unit: "count", rising: true, get: (op) => op + 1 },
    timed && { name: "start", unit: clockUnit, rising: true, get: (op) => known(start[op] * unit) },
    timed && { name: "time", unit: clockUnit, get: (op) => known(work[op]) },
    timed && hosted && { name: "host time", unit: clockUnit, get: (op) => known(host[op]) },
    flops && { name: "GFLOP", unit: "rate", get: scaled(flops) },
    timed && flops && { name: "GFLOP/s", unit: "rate", get: (op) => rateOf(flops, op, work) },
    bytes && { name: "read and written", unit: "bytes", get: (op) => bytes[op] },
    timed && bytes && { name: "GB/s", unit: "rate", get: (op) => rateOf(bytes, op, work) },
  ].filter(Boolean);
  const byTime = columns.findIndex((column) => column.name === "time");
  byId("operators").hidden = false;
  byId("operators-caption").textContent = `${formatCount(count)} ${count === 1 ? "operator" : "operators"}` +
    `${profile.idle ? `; ${formatCount(profile.idle)} more are known but never ran` : ""}. Headings sort.`;
  showTable(byId("operators-table"), { title: "operators-title", count, columns,
    search: "search names, types and modules", order: byTime < 0 ? null : [byTime, -1] });
}

function showProfile() {
  const facts = workOf(), lanes = makeLanes(), places = listPlaces(), updates = [];
  const remembered = hasTime && tickCount > 0 && blocks.bytes.some((bytes) => bytes > 0);
  byId("charts").hidden = !hasTime || !(remembered || lanes.length);
  if (remembered) {
    updates.push(makeMemoryChart(lanes, places[0]));
    if (blocks.at.some((at, i) => at >= 0 && blocks.stop[i] > blocks.start[i])) updates.push(makeMap(places[0]));
  }
  if (hasTime && lanes.length) makeTimeline(lanes, facts);
  if (operators.name.length) showOperators(facts);
  byId("device-label").hidden = !remembered || places.length < 2;
  fillSelect(byId("device"), places.map((place) => place.name), (i) => updates.forEach((update) => update(places[i])));
  byId("reset").addEventListener("click", resetView);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || event.target.tagName === "INPUT") return;
    if (isZoomed()) resetView();
  });
  resetView();
}

showHeader();
if (data.bars.length) showBars();
if (data.tiles) showTiles();
if (data.scatter) showScatter(data.scatter);
showTables();
if (profile) showProfile();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  theme = null;
  redrawSoon();
});

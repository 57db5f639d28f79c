// Tables that sort by any column, are turned page by page when they are long, and can be searched. They are made of
// columns {name, unit, get}: `get` gives the value in a row. Runs after report_base.js.
const PAGE_ROWS = 50;
let tableCount = 0;

/** Unknown comes last, whichever way. */
function compareCells(a, b, sign) {
  const left = a ?? null, right = b ?? null;
  if (left === null || right === null) return (left === null) - (right === null);
  return left < right ? -sign : left > right ? sign : 0;
}

/** Rows in order of a column. Values are asked for once: there may be many. */
function sortRows(rows, column, sign) {
  const keys = new Map();
  for (const row of rows) keys.set(row, column.get(row));
  return rows.sort((a, b) => compareCells(keys.get(a), keys.get(b), sign) || a - b);
}

function makeCell(column, first, row, spec) {
  const value = column.get(row), cell = make(first ? "th" : "td", column.unit === "text" ? "" : "number");
  cell.append(show(value, column.unit));
  if (first) cell.scope = "row";
  if (first && spec.marked?.has(row) && spec.mark) cell.append(" ", make("span", "pill", spec.mark));
  if (column.unit === "bytes" && typeof value === "number") cell.title = `${formatCount(value)} bytes`;
  return cell;
}

/** `spec`: title (its id), columns, count, and where wanted caption, marked, mark, search and order [column, sign]. */
function showTable(host, spec) {
  const body = make("tbody"), heads = [], status = make("span", "pages");
  const state = { rows: [], page: 0, order: spec.order ?? null, words: [] };
  const fill = () => {
    const { rows, page } = state, from = page * PAGE_ROWS, shown = rows.slice(from, from + PAGE_ROWS);
    body.replaceChildren(...shown.map((row) => make("tr", spec.marked?.has(row) ? "marked" : "",
      ...spec.columns.map((column, i) => makeCell(column, i === 0, row, spec)))));
    status.textContent = !rows.length ? "nothing found"
      : `${formatCount(from + 1)} to ${formatCount(from + shown.length)} of ${formatCount(rows.length)}`;
    before.disabled = page === 0;
    after.disabled = from + PAGE_ROWS >= rows.length;
    pager.hidden = spec.count <= PAGE_ROWS && !spec.search;
  };
  const turn = (by) => {
    state.page += by;
    fill();
  };
  const arrange = () => {
    const found = Array.from({ length: spec.count }, (_, i) => i).filter((row) => matches(spec, row, state.words));
    state.rows = state.order ? sortRows(found, spec.columns[state.order[0]], state.order[1]) : found;
    state.page = 0;
    heads.forEach((head, i) => (state.order?.[0] === i
      ? head.setAttribute("aria-sort", state.order[1] > 0 ? "ascending" : "descending")
      : head.removeAttribute("aria-sort")));
    fill();
  };
  const before = makeButton("Previous", () => turn(-1)), after = makeButton("Next", () => turn(1));
  const pager = make("div", "pager", status, before, after), line = make("tr");
  status.setAttribute("role", "status");
  spec.columns.forEach((column, i) => {
    const head = make("th", column.unit !== "text" ? "number" : "", makeButton(column.name, () => {
      const first = column.unit === "text" || column.rising ? 1 : -1; // else the largest is what one looks for
      state.order = [i, state.order?.[0] === i ? -state.order[1] : first];
      arrange();
    }));
    head.scope = "col";
    heads.push(head);
  });
  line.append(...heads);
  const table = make("table", "", make("thead", "", line), body), scroll = make("div", "scroll", table);
  table.setAttribute("aria-labelledby", spec.title);
  host.replaceChildren(...(spec.caption ? [make("p", "", spec.caption)] : []),
    ...(spec.search ? [makeSearch(spec, state, arrange)] : []), scroll, pager);
  arrange();
}

/** All words must be somewhere in the texts of a row. What is searched is put together when first needed. */
function matches(spec, row, words) {
  if (!words.length) return true;
  spec.hay ??= Array.from({ length: spec.count }, (_, i) => spec.columns.filter((column) => column.unit === "text")
    .map((column) => column.get(i) ?? "").join("\n").toLowerCase());
  return words.every((word) => spec.hay[row].includes(word));
}

function makeSearch(spec, state, arrange) {
  const input = make("input"), id = `search-${tableCount += 1}`, label = make("label", "", spec.search);
  Object.assign(input, { type: "search", id, autocomplete: "off", spellcheck: false });
  label.htmlFor = id;
  input.addEventListener("input", () => {
    state.words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    arrange();
  });
  return make("div", "search", label, input);
}

// Figures before and after, as bars: above, before; below, after. Runs after report_chart.js.
const BEFORE = ["grey", ""], LESS = ["green", ""], MORE = ["vermillion", "/"], SAME = ["sky", ""];
const BAR = { height: 13, gap: 2, room: 150 }; // `room`: for the words behind a bar
const ALIKE = 0.005; // of the figure before: as good as no change

/** "less" is better in all that is drawn: seconds and bytes. */
const barStyle = (before, after) => (before === null || after === null || Math.abs(after - before) <= ALIKE * before
  ? SAME : after < before ? LESS : MORE);

function sayChange(before, after, unit) {
  if (before === null || after === null || !before) return "";
  const share = after / before - 1;
  if (unit === "predicted") return ` (${formatExtra(share)})`;
  return ` (${share >= 0 ? "+" : "−"}${formatShare(Math.abs(share))})`;
}

function drawBars(canvas, unit, most, before, after) {
  const width = Math.max(160, canvas.parentElement.clientWidth), height = 2 * BAR.height + BAR.gap;
  const context = fitCanvas(canvas, width, height), colours = palette(), room = Math.min(BAR.room, width * 0.6);
  const bars = [[before, BEFORE, ""], [after, barStyle(before, after), sayChange(before, after, unit)]];
  bars.forEach(([number, style, more], k) => {
    const y = k * (BAR.height + BAR.gap), length = number === null || !most ? 0 : (number / most) * (width - room);
    context.fillStyle = fillOf(style);
    context.fillRect(0, y, Math.max(number === null ? 0 : 1, length), BAR.height);
    Object.assign(context, { fillStyle: colours.text, textBaseline: "middle", textAlign: "left" });
    context.fillText(`${show(number, unit)}${more}`, length + 6, y + BAR.height / 2 + 0.5);
  });
}

function showBars() {
  const legend = make("ul", "legend"), sections = data.bars.map(({ title, unit, rows, caption }, i) => {
    const head = make("h2", "", title), grid = make("div", "bars");
    head.id = `bars-${i}`;
    const most = Math.max(0, ...rows.flatMap(([, before, after]) => [before ?? 0, after ?? 0]));
    for (const [name, before, after] of rows) {
      const canvas = make("canvas"), cell = make("div", "", canvas);
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label",
        `${name}: before ${show(before, unit)}, after ${show(after, unit)}${sayChange(before, after, unit)}`);
      grid.append(make("div", "", name), cell);
      redraws.push({ redraw: () => drawBars(canvas, unit, most, before, after) });
    }
    const section = make("section", "", head, ...(caption ? [make("p", "", caption)] : []), grid);
    section.setAttribute("aria-labelledby", head.id);
    return section;
  });
  byId("bars").append(legend, ...sections);
  showLegend(legend, [["before", swatch(BEFORE)], ["after: less", swatch(LESS)], ["after: more", swatch(MORE)],
    ["after: the same, or nothing to compare with", swatch(SAME)]]);
  new ResizeObserver(redrawSoon).observe(byId("bars"));
  redrawSoon();
}

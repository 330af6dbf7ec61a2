// ---- the table's rows by any two of its columns

const PLOT = { width: 800, height: 400, left: 84, right: 20, top: 14, bottom: 50, most: 4000 };

// A number's place between two pixels: by its logarithm where the values span more than two decades; and where ticks stand.
function scale(values, from, to) {
  const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  const decades = low > 0 && high / low > 100;
  const along = decades ? Math.log10 : (value) => value;
  const [begin, end] = low === high ? [along(low) - 0.5, along(high) + 0.5] : [along(low), along(high)];
  const step = decades ? Math.ceil((end - begin) / 6) : [1, 2, 5, 10].map((each) => each * 10 ** Math.floor(Math.log10((end - begin) / 5))).find((each) => each * 6 >= end - begin);
  const ticks = [];
  for (let at = Math.ceil(begin / step) * step; at <= end + step / 1e6; at += step) ticks.push(decades ? 10 ** at : Number(at.toPrecision(9)));
  return { ticks, at: (value) => from + ((to - from) * (along(value) - begin)) / (end - begin) };
}

class Axes {
  constructor(grid) {
    this.grid = grid;
    this.choices = [byId("axis-x"), byId("axis-y")];
    for (const choice of this.choices) choice.addEventListener("change", () => { this.wanted = this.choices.map(({ value }) => value); this.draw(); grid.keep(); });
    byId("axes").addEventListener("toggle", () => { this.draw(); grid.keep(); });
    watchers.push(() => this.draw());
  }

  // Columns of numbers of this table; those that were wanted before stay.
  offer() {
    const { columns: all, values } = this.grid.table;
    const columns = all.filter(({ number }, index) => number && values[index].some((value) => typeof value === "number"));
    const names = columns.map(({ name }) => name);
    const usual = ["utilization_percent", "mfu_percent", "m", "tflop_s", "time_s", ...names];
    for (const [place, choice] of this.choices.entries()) {
      choice.replaceChildren(...columns.map(({ name, title }) => new Option(title, name)));
      const wanted = [this.wanted?.[place], ...usual].find((name) => names.includes(name) && name !== (place ? this.choices[0].value : this.wanted?.[1]));
      choice.value = wanted ?? "";
    }
  }

  draw() {
    if (!byId("axes").open || !this.grid.order) return;
    const [x, y] = this.choices.map(({ value }) => this.grid.table.columns.findIndex(({ name }) => name === value));
    const all = x < 0 || y < 0 ? [] : this.grid.order.map((row) => [row, this.grid.value(x, row), this.grid.value(y, row)]).filter(([, across, up]) => typeof across === "number" && typeof up === "number");
    const points = all.filter((_, place) => place % Math.ceil(all.length / PLOT.most) === 0);
    byId("axes-count").textContent = words.count.replace("{shown}", points.length.toLocaleString()).replace("{total}", this.grid.table.length.toLocaleString());
    const [right, floor] = [PLOT.width - PLOT.right, PLOT.height - PLOT.bottom];
    const names = this.choices.map(({ selectedOptions }) => selectedOptions[0]?.textContent ?? "");
    const svg = shape("svg", { viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, role: "img", "aria-label": names.join(" / ") });
    byId("axes-plot").replaceChildren(svg);
    if (!points.length) return;
    const [across, up] = [scale(points.map((point) => point[1]), PLOT.left, right), scale(points.map((point) => point[2]), floor, PLOT.top)];
    for (const value of across.ticks) svg.append(shape("path", { d: `M${across.at(value)} ${PLOT.top}V${floor}` }), shape("text", { x: across.at(value), y: floor + 18, "text-anchor": "middle" }, shown(value, this.choices[0].value)));
    for (const value of up.ticks) svg.append(shape("path", { d: `M${PLOT.left} ${up.at(value)}H${right}` }), shape("text", { x: PLOT.left - 8, y: up.at(value) + 4, "text-anchor": "end" }, shown(value, this.choices[1].value)));
    svg.append(shape("text", { x: (PLOT.left + right) / 2, y: PLOT.height - 8, "text-anchor": "middle" }, names[0]), shape("text", { x: 14, y: (PLOT.top + floor) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(PLOT.top + floor) / 2})` }, names[1]));
    const runs = this.grid.table.columns.findIndex(({ name }) => name === "run");
    for (const [row, one, two] of points) {
      const mark = shape("circle", { cx: across.at(one), cy: up.at(two), r: 4.5, "class": chosen.has(this.grid.id(row)) ? "on" : "" });
      mark.append(shape("title", {}, `${runs < 0 ? "" : this.grid.value(runs, row)}: ${shown(one, this.choices[0].value)}, ${shown(two, this.choices[1].value)}`));
      mark.addEventListener("click", () => this.grid.openRow(row));
      svg.append(mark);
    }
  }
}

// ---- data: gzip in base64, because a sweep's rows repeat themselves

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// ---- the table

const data = unpack(byId("data").textContent);
const comparisons = {
  "=": (a, b) => String(a).toLowerCase() === b || (a !== null && a !== "" && b !== "" && Number(a) === Number(b)),
  "!=": (a, b) => !comparisons["="](a, b),
  ">": (a, b) => a !== null && Number(a) > Number(b),
  "<": (a, b) => a !== null && Number(a) < Number(b),
  ">=": (a, b) => a !== null && Number(a) >= Number(b),
  "<=": (a, b) => a !== null && Number(a) <= Number(b),
};
const about = ({ name, title, description }) => (title === name ? description : `${name}: ${description}`);
const UNITS = ["", "_percent", "_s", "_bytes", "_j", "_tflop_s"];

class Grid {
  constructor(tables, details) {
    this.tables = tables;
    this.wanted = {}; // columns that are shown, by table
    this.details = details;
    this.scroll = byId("scroll");
    this.head = byId("grid").tHead;
    this.body = byId("grid").tBodies[0];
    for (const name of Object.keys(tables)) byId("table").add(new Option(`${name} (${tables[name].length})`, name));
    byId("table").addEventListener("change", () => this.choose(byId("table").value));
    byId("filter").addEventListener("input", () => this.select());
    byId("all").addEventListener("change", () => {
      const on = byId("all").checked;
      this.wanted[this.name] = new Set(this.table.columns.filter((column) => on || column.main).map((column) => column.name));
      this.choose(this.name);
    });
    byId("export").addEventListener("click", () => save(`${this.name}.csv`, [csv(this.lines())], "text/csv"));
    byId("copy-rows").addEventListener("click", () => copy(byId("copy-rows"), pasted(this.lines())));
    byId("only").addEventListener("change", () => this.select());
    byId("beside").addEventListener("click", () => this.beside());
    this.ids = {};
    watchers.push((seen) => this.reveal(seen));
    this.scroll.addEventListener("scroll", () => requestAnimationFrame(() => this.scrolled()));
    this.body.addEventListener("click", (event) => {
      const line = event.target.closest("tr[data-row]");
      if (event.target.tagName === "INPUT") choose([this.id(Number(line.dataset.row))], true, null);
      else this.open(line);
    });
    byId("run").addEventListener("close", () => this.keep());
    this.body.addEventListener("keydown", (event) => {
      if (event.key === " ") {
        event.preventDefault();
        const { row } = event.target.closest("tr[data-row]").dataset;
        choose([this.id(Number(row))], true, null);
        this.body.querySelector(`[data-row="${row}"]`)?.focus();
      }
      if (event.key !== "Enter" || event.target.tagName === "INPUT") return;
      event.preventDefault(); // or the same key press would close the dialog again
      this.open(event.target.closest("tr[data-row]"));
    });
    this.axes = new Axes(this);
    addEventListener("beforeprint", () => this.paint(Math.min(this.order.length, 500)));
    addEventListener("afterprint", () => this.paint());
    this.restore(new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : ""));
  }

  // ---- the view in the address: table, filter, order and selection

  restore(view) {
    const [name] = [view.get("table"), ...Object.keys(this.tables)].filter((each) => each in this.tables);
    byId("table").value = name;
    byId("filter").value = view.get("filter") ?? "";
    byId("only").checked = view.has("only");
    const [, down, sorted] = (view.get("sort") ?? "").match(/^(-?)(\w+)$/) ?? [];
    const index = this.tables[name].columns.findIndex((each) => each.name === sorted);
    if (index >= 0) this.sorted = { name: sorted, index, ascending: !down };
    const ids = (view.get("select") ?? "").split(",").filter((id) => /^[0-9a-f]{8}$/.test(id));
    for (const id of ids) chosen.add(id);
    if (view.has("axes")) this.axes.wanted = view.get("axes").split(",");
    byId("axes").open = view.has("axes");
    this.choose(name);
    this.ready = true;
    if (ids.length) choose([], true, ids[0]);
    if (view.has("beside")) this.beside();
  }

  keep(more = {}) {
    if (!this.ready) return;
    const sort = this.sorted && `${this.sorted.ascending ? "" : "-"}${this.sorted.name}`;
    const first = Object.keys(this.tables)[0];
    const view = { table: this.name === first ? "" : this.name, filter: byId("filter").value, sort, only: byId("only").checked && "1", select: [...chosen].join(","), axes: byId("axes").open && this.axes.choices.map(({ value }) => value).join(","), ...more };
    const said = new URLSearchParams(Object.entries(view).filter(([, value]) => value)).toString();
    history.replaceState(null, "", said ? `#${said}` : location.hash.includes("=") ? location.pathname + location.search : location.hash || location.pathname);
  }

  id(row, name = this.name) {
    const known = (this.ids[name] ??= []);
    return (known[row] ??= checksum(this.key(row, name)));
  }

  key(row, name) {
    const at = (column) => {
      const place = this.tables[name].columns.findIndex((each) => each.name === column);
      const cell = place < 0 ? "" : this.tables[name].values[place][row];
      return this.tables[name].columns[place]?.dictionary ? this.tables[name].columns[place].dictionary[cell] : cell;
    };
    return `${at("recorded") ? "recorded/" : ""}${at("hardware")}/${at("run")}`;
  }

  rowOf(id, name) {
    for (let row = 0; row < this.tables[name].length; row++) if (this.id(row, name) === id) return row;
    return -1;
  }

  // What was chosen in a figure comes into view, in whichever table has it.
  reveal(seen) {
    const name = seen && [this.name, ...Object.keys(this.tables)].find((each) => this.rowOf(seen, each) >= 0);
    if (name && name !== this.name) {
      byId("table").value = name;
      this.choose(name);
    } else if (byId("only").checked) this.select();
    const place = name ? this.order.indexOf(this.rowOf(seen, name)) : -1;
    if (place >= 0) this.scroll.scrollTop = place * ROW_HEIGHT;
    this.paint();
    this.keep();
  }

  choose(name) {
    this.name = name;
    this.table = this.tables[name];
    const wanted = (this.wanted[name] ??= new Set(this.table.columns.filter((column) => column.main).map((column) => column.name)));
    this.shown = this.table.columns.map((column, index) => ({ ...column, index })).filter((column) => wanted.has(column.name));
    byId("all").checked = this.shown.length === this.table.columns.length;
    byId("column-list").replaceChildren(...this.table.columns.map((column) => this.chooser(column, wanted)));
    if (!this.shown.some((column) => this.sorted && column.name === this.sorted.name)) this.sorted = null;
    this.head.replaceChildren(element("tr", {}, ...this.shown.map((column) => this.heading(column))));
    if (this.sorted) this.head.rows[0].cells[this.shown.findIndex((column) => column.name === this.sorted.name)].setAttribute("aria-sort", this.sorted.ascending ? "ascending" : "descending");
    this.axes.offer();
    this.select();
  }

  chooser(column, wanted) {
    const box = element("input", { type: "checkbox", checked: wanted.has(column.name) });
    box.addEventListener("change", () => {
      wanted[box.checked ? "add" : "delete"](column.name);
      const names = [...byId("column-list").querySelectorAll("input")];
      const place = names.indexOf(box);
      this.choose(this.name);
      byId("column-list").querySelectorAll("input")[place].focus();
    });
    return element("label", { title: about(column) }, box, ` ${column.title}`);
  }

  heading(column) {
    const button = element("button", { textContent: column.title, title: about(column), type: "button" });
    button.addEventListener("click", () => {
      const ascending = this.sorted && this.sorted.name === column.name ? !this.sorted.ascending : !column.number;
      this.sorted = { name: column.name, index: column.index, ascending };
      for (const cell of this.head.rows[0].cells) cell.removeAttribute("aria-sort");
      button.parentElement.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      this.select();
    });
    return element("th", { className: column.number ? "number" : "", scope: "col" }, button);
  }

  value(column, row) {
    const cell = this.table.values[column][row];
    return this.table.columns[column].dictionary ? this.table.columns[column].dictionary[cell] : cell;
  }

  // What a cell holds, and the word that stands for it: the filter finds either.
  said(column, row) {
    const value = this.value(column.index, row);
    return `${value ?? ""} ${column.words?.[value] ?? ""}`.toLowerCase();
  }

  select() {
    const wrong = [];
    const spaced = byId("filter").value.trim().replace(/\s*(>=|<=|!=|[=<>])\s*/g, "$1");
    const terms = spaced.split(/\s+/).filter(Boolean).map((term) => this.test(term, wrong));
    const order = [];
    for (let row = 0; row < this.table.length; row++) if (terms.every((test) => test(row)) && (!byId("only").checked || chosen.has(this.id(row)))) order.push(row);
    if (this.sorted) {
      const { index, ascending } = this.sorted;
      const empty = (value) => value === null || value === "";
      order.sort((a, b) => {
        const [x, y] = [this.value(index, a), this.value(index, b)];
        if (empty(x) || empty(y)) return empty(x) - empty(y); // what was not measured comes last either way
        const compared = typeof x === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
        return ascending ? compared : -compared;
      });
    }
    this.order = order;
    byId("count").textContent = words.count.replace("{shown}", order.length.toLocaleString()).replace("{total}", this.table.length.toLocaleString());
    byId("wrong").textContent = wrong.join(" ");
    byId("filter").ariaInvalid = String(wrong.length > 0);
    this.scroll.scrollTop = 0;
    this.paint();
    this.axes.draw();
    this.keep();
  }

  // A column by its name, by its name without the unit, or by the only beginning that fits.
  column(name) {
    const names = this.table.columns.map((each) => each.name);
    const exact = UNITS.map((unit) => names.indexOf(name + unit)).find((place) => place >= 0);
    if (exact !== undefined) return exact;
    const begun = names.filter((each) => each.startsWith(name));
    return begun.length === 1 ? names.indexOf(begun[0]) : -1;
  }

  test(term, wrong) {
    const [, name, sign, given] = term.match(/^([\w.]+)(>=|<=|!=|[=<>])(.*)$/) || [];
    const run = this.table.columns.findIndex((each) => each.name === "run"); // what else differs stands in the run's name
    if (name) {
      const column = this.column(name.toLowerCase());
      const wanted = given.toLowerCase().replace(/(\d),(?=\d{3})/g, "$1").replace(/%$/, "");
      if (column >= 0) {
        const is_compared = /[<>]/.test(sign) || (this.table.columns[column].number && wanted !== "");
        if (is_compared && (wanted === "" || Number.isNaN(Number(wanted)))) {
          wrong.push(words.no_number.replace("{value}", given || "…").replace("{column}", this.table.columns[column].name));
          return () => true;
        }
        return (row) => comparisons[sign](this.value(column, row), wanted);
      }
      const inRuns = sign === "=" && run >= 0 && this.table.columns[run].dictionary.some((each) => each.toLowerCase().includes(term.toLowerCase()));
      if (!inRuns) {
        const near = this.table.columns.map((each) => each.name).filter((each) => each.includes(name.toLowerCase().slice(0, 4))).slice(0, 6);
        wrong.push(words.no_column.replace("{column}", name).replace("{near}", near.join(", ") || "…"));
        return () => true;
      }
    }
    const text = term.toLowerCase();
    const searched = this.shown.some((each) => each.index === run) || run < 0 ? this.shown : [...this.shown, { index: run }];
    return (row) => searched.some((each) => this.said(each, row).includes(text));
  }

  // Only the rows in view are in the document: a hundred thousand cost no more than forty.
  inView() {
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW_HEIGHT) - 10);
    return [first, Math.min(this.order.length, first + Math.ceil(this.scroll.clientHeight / ROW_HEIGHT) + 20)];
  }

  // A row replaced between press and release of the button would lose the click: repaint only what has moved.
  scrolled() {
    if (String(this.inView()) !== String(this.painted)) this.paint();
  }

  paint(count = 0) {
    const [first, last] = count ? [0, count] : this.inView();
    this.painted = [first, last];
    const spacer = (rows) => element("tr", { ariaHidden: "true" }, Object.assign(element("td", { colSpan: this.shown.length }), { style: `height:${rows * ROW_HEIGHT}px;padding:0;border:0` }));
    const rows = this.order.slice(first, last).map((row) => {
      const line = element("tr", { tabIndex: 0 }, ...this.shown.map((column) => this.cell(column, row)));
      const on = chosen.has(this.id(row));
      line.classList.toggle("on", on);
      line.cells[0]?.prepend(element("input", { type: "checkbox", checked: on, tabIndex: -1, ariaLabel: `${words.select} ${this.key(row, this.name)}` }));
      line.dataset.row = row;
      return line;
    });
    const focused = this.body.contains(document.activeElement) && document.activeElement.closest("tr[data-row]")?.dataset.row;
    this.body.replaceChildren(...(first ? [spacer(first)] : []), ...rows, ...(last < this.order.length && !count ? [spacer(this.order.length - last)] : []));
    if (focused) this.body.querySelector(`[data-row="${focused}"]`)?.focus({ preventScroll: true }); // drawn anew as it is scrolled to
  }

  cell(column, row) {
    const value = this.value(column.index, row);
    const bad = column.name === "status" && value !== "ok";
    return element("td", { className: bad ? "bad" : column.number ? "number" : "", textContent: shown(column.words?.[value] ?? value, column.name) });
  }

  // What is shown: the chosen columns of the filtered rows, in their order.
  lines() {
    return [this.shown.map((column) => column.name), ...this.order.map((row) => this.shown.map((column) => this.value(column.index, row)))];
  }

  record(row) {
    return Object.fromEntries(this.table.columns.map((column, index) => [column.name, this.value(index, row)]));
  }

  // Two runs of one table, line by line.
  beside() {
    const rows = [...chosen].map((id) => this.rowOf(id, this.name)).filter((row) => row >= 0);
    if (rows.length !== 2) return;
    byId("run-title").replaceChildren(words.side_by_side);
    byId("run-body").replaceChildren(...besides(...rows.map((row) => this.record(row))));
    byId("run").showModal();
    this.keep({ beside: "1" });
  }

  open(line) {
    if (line) this.openRow(Number(line.dataset.row));
  }

  // A run by the checksum that a figure's mark carries, from the first table that has it.
  openRun(id) {
    const name = [this.name, ...Object.keys(this.tables)].find((each) => this.rowOf(id, each) >= 0);
    if (!name) return;
    if (name !== this.name) this.choose(name);
    this.openRow(this.rowOf(id, name));
  }

  openRow(row) {
    const record = this.record(row);
    const detail = this.details[`${record.recorded ? "recorded/" : ""}${record.hardware}/${this.name}/${record.run}`];
    byId("run-title").replaceChildren(...broken(record.run));
    byId("run-body").replaceChildren(...(record.verdict ? [element("p", {}, element("strong", { textContent: record.verdict }), `: ${record.verdict_reason}`)] : []), ...icicle(record, detail), ...over_commits(record, detail?.earlier), ...(detail ? describe(detail) : []), element("h3", { textContent: words.row }), facts(record));
    byId("run").showModal();
  }
}

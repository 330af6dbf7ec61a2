// The page's behaviour: theme, copying commands, and a table that sorts, filters, exports and opens runs. No library, no network.
"use strict";
const byId = (id) => document.getElementById(id);
const words = JSON.parse(byId("words").textContent);
const ROW_HEIGHT = 32;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// ---- theme and commands

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code); // a page opened from a file may not write the clipboard
      document.execCommand("copy");
    }
    button.textContent = words.copied;
    setTimeout(() => { button.textContent = words.copy; }, 1500);
  });
}

// ---- figures: whole on a narrow screen, and legible at a touch

for (const drawing of document.querySelectorAll(".drawing")) {
  const enlarge = (share) => {
    drawing.classList.toggle("large");
    drawing.scrollLeft = share * drawing.scrollWidth - drawing.clientWidth / 2; // what was touched stays in view
  };
  drawing.addEventListener("click", (event) => enlarge((event.clientX - drawing.getBoundingClientRect().left) / drawing.clientWidth));
  drawing.addEventListener("keydown", (event) => { if (event.key === "Enter") enlarge(0.5); });
}

// ---- data: gzip in base64, because a sweep's rows repeat themselves

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// ---- the table

const comparisons = {
  "=": (a, b) => String(a) === b || Number(a) === Number(b),
  ">": (a, b) => a !== null && Number(a) > Number(b),
  "<": (a, b) => a !== null && Number(a) < Number(b),
};

class Grid {
  constructor(tables, details) {
    this.tables = tables;
    this.details = details;
    this.scroll = byId("scroll");
    this.head = byId("grid").tHead;
    this.body = byId("grid").tBodies[0];
    for (const name of Object.keys(tables)) byId("table").add(new Option(`${name} (${tables[name].length})`, name));
    byId("table").addEventListener("change", () => this.choose(byId("table").value));
    byId("filter").addEventListener("input", () => this.select());
    byId("all").addEventListener("change", () => this.choose(this.name));
    byId("export").addEventListener("click", () => this.export());
    this.scroll.addEventListener("scroll", () => requestAnimationFrame(() => this.scrolled()));
    this.body.addEventListener("click", (event) => this.open(event.target.closest("tr[data-row]")));
    this.body.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // or the same key press would close the dialog again
      this.open(event.target.closest("tr[data-row]"));
    });
    addEventListener("beforeprint", () => this.paint(Math.min(this.order.length, 500)));
    addEventListener("afterprint", () => this.paint());
    this.choose(Object.keys(tables)[0]);
  }

  choose(name) {
    this.name = name;
    this.table = this.tables[name];
    const everything = byId("all").checked;
    this.shown = this.table.columns.map((column, index) => ({ ...column, index })).filter((column) => everything || column.main);
    if (!this.shown.some((column) => this.sorted && column.name === this.sorted.name)) this.sorted = null;
    this.head.replaceChildren(element("tr", {}, ...this.shown.map((column) => this.heading(column))));
    this.select();
  }

  heading(column) {
    const button = element("button", { textContent: column.name, title: column.description, type: "button" });
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

  select() {
    const terms = byId("filter").value.trim().split(/\s+/).filter(Boolean).map((term) => this.test(term));
    const order = [];
    for (let row = 0; row < this.table.length; row++) if (terms.every((test) => test(row))) order.push(row);
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
    this.scroll.scrollTop = 0;
    this.paint();
  }

  test(term) {
    const [, name, sign, wanted] = term.match(/^([a-z_0-9]+)([=<>])(.*)$/) || [];
    const column = this.table.columns.findIndex((each) => each.name === name);
    if (column >= 0) return (row) => comparisons[sign](this.value(column, row), wanted);
    const text = term.toLowerCase();
    const run = this.table.columns.findIndex((each) => each.name === "run"); // what else differs stands in the run's name
    const searched = this.shown.some((each) => each.index === run) || run < 0 ? this.shown : [...this.shown, { index: run }];
    return (row) => searched.some((each) => String(this.value(each.index, row) ?? "").toLowerCase().includes(text));
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
      line.dataset.row = row;
      return line;
    });
    this.body.replaceChildren(...(first ? [spacer(first)] : []), ...rows, ...(last < this.order.length && !count ? [spacer(this.order.length - last)] : []));
  }

  cell(column, row) {
    const value = this.value(column.index, row);
    const bad = column.name === "status" && value !== "ok";
    return element("td", { className: bad ? "bad" : column.number ? "number" : "", textContent: shown(value) });
  }

  export() {
    // A spreadsheet runs a text that begins like a formula: one quote keeps it a text.
    const text = (value) => (typeof value === "string" && /^'*[=+\-@\t\r]/.test(value) ? `'${value}` : String(value));
    const quote = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const cell = (value) => (value === null ? "" : quote(text(value)));
    const lines = [this.table.columns.map((column) => column.name).join(",")];
    for (const row of this.order) lines.push(this.table.columns.map((_, column) => cell(this.value(column, row))).join(","));
    const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    element("a", { href: url, download: `${this.name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  open(line) {
    if (!line) return;
    const row = Number(line.dataset.row);
    const record = Object.fromEntries(this.table.columns.map((column, index) => [column.name, this.value(index, row)]));
    const facts = element("dl", { className: "facts" });
    for (const [name, value] of Object.entries(record)) if (value !== null && value !== "") facts.append(element("dt", { textContent: name }), element("dd", { textContent: shown(value) }));
    const detail = this.details[`${record.recorded ? "recorded/" : ""}${record.hardware}/${this.name}/${record.run}`];
    byId("run-title").replaceChildren(...record.run.split(/(?<=,)/).flatMap((part) => [part, element("wbr")]));
    byId("run-body").replaceChildren(...(record.verdict ? [element("p", {}, element("strong", { textContent: record.verdict }), `: ${record.verdict_reason}`)] : []), ...(detail ? describe(detail) : []), element("h3", { textContent: words.row }), facts);
    byId("run").showModal();
  }
}

function shown(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(4)));
}

function describe(detail) {
  const parts = [element("p", { className: "provenance", textContent: `${words.folder} ${detail.folder}` })];
  for (const kind of ["samples", "series"]) {
    for (const [name, points] of Object.entries(detail[kind] ?? {})) {
      if (name !== "time_s" || kind === "samples") parts.push(element("h3", { textContent: `${words[kind]}: ${name}` }), spark(points));
    }
  }
  if (detail.operators) parts.push(element("h3", { textContent: words.operators }), list(detail.operators));
  if (detail.config) parts.push(element("h3", { textContent: words.config }), element("pre", { textContent: JSON.stringify(detail.config, null, 1) }));
  if (detail.log) parts.push(element("h3", { textContent: words.log }), element("pre", { textContent: detail.log }));
  return parts;
}

function list(records) {
  const names = [...new Set(records.flatMap(Object.keys))];
  const line = (tag, cells) => element("tr", {}, ...cells.map((cell) => element(tag, { textContent: cell })));
  const body = records.map((record) => line("td", names.map((name) => shown(Number.isNaN(Number(record[name] || "x")) ? record[name] : Number(record[name])))));
  return element("div", { className: "wide" }, element("table", {}, element("thead", {}, line("th", names)), element("tbody", {}, ...body)));
}

function spark(points) {
  const numbers = points.filter((value) => value !== null);
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const width = 2 * Math.min(900, innerWidth - 80); // two dots a pixel of the dialog, or points would be drawn as ellipses
  const canvas = element("canvas", { className: "spark", width, height: 220, role: "img", ariaLabel: `${shown(low)} … ${shown(high)}` });
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  const top = high > low ? high : low + 1;
  points.forEach((value, index) => {
    if (value === null) return;
    pen.beginPath();
    pen.arc(20 + (index * (width - 40)) / Math.max(1, points.length - 1), 190 - (160 * (value - low)) / (top - low), 6, 0, 7);
    pen.fill();
  });
  return element("div", {}, canvas, element("p", { className: "provenance", textContent: `${shown(low)} … ${shown(high)}` }));
}

if (byId("grid")) unpack(byId("data").textContent).then(({ tables, details }) => new Grid(tables, details));

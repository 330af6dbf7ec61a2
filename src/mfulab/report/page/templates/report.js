// The page's behaviour: theme, copying commands, and a table that sorts, filters, exports and opens runs. No library, no network.
"use strict";
const byId = (id) => document.getElementById(id);
const { words, groups } = JSON.parse(byId("words").textContent);
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

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { value: text }); // a page opened from a file may not write the clipboard
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = words.copied;
  setTimeout(() => { button.textContent = before; }, 1500);
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", () => copy(button, button.previousElementSibling.textContent));
}

function save(name, parts, type) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// A spreadsheet runs a text that begins like a formula: one quote keeps it a text.
function csv(lines) {
  const text = (value) => (typeof value === "string" && /^'*[=+\-@\t\r]/.test(value) ? `'${value}` : String(value));
  const quote = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  return lines.map((line) => line.map((value) => (value === null || value === undefined ? "" : quote(text(value)))).join(",")).join("\n") + "\n";
}

// ---- figures saved from the page

function standalone(figure) {
  const svg = figure.querySelector(".drawing svg").cloneNode(true);
  const letters = new Set([...svg.querySelectorAll("use")].map((use) => (use.getAttribute("href") ?? "").slice(1)));
  svg.prepend(...[...document.querySelectorAll(".glyphs path")].filter((path) => letters.has(path.id)).map((path) => { const defs = document.createElementNS(svg.namespaceURI, "defs"); defs.append(path.cloneNode(true)); return defs; }));
  const root = document.documentElement;
  const theme = root.dataset.theme;
  root.dataset.theme = "light"; // a picture lies on paper
  const colors = getComputedStyle(root);
  const text = new XMLSerializer().serializeToString(svg).replace(/var\((--\w+)\)/g, (_, name) => colors.getPropertyValue(name).trim());
  if (theme) root.dataset.theme = theme;
  else delete root.dataset.theme;
  const [, , width, height] = svg.getAttribute("viewBox").split(/\s+/).map(Number);
  return { text: text.replace("<svg", `<svg width="${width}" height="${height}"`), width, height };
}

const downloads = {
  svg: (figure, name) => save(`${name}.svg`, [standalone(figure).text], "image/svg+xml"),
  png(figure, name) {
    const { text, width, height } = standalone(figure);
    const image = new Image();
    image.addEventListener("load", () => {
      const canvas = element("canvas", { width: 2.5 * width, height: 2.5 * height });
      const pen = canvas.getContext("2d");
      pen.fillStyle = "#ffffff";
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(`${name}.png`, [blob], "image/png"));
    });
    image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  },
  async csv(figure, name) {
    const { columns, rows, all } = (await data).figures[name];
    const part = rows.length < all ? `.first-${rows.length}-rows` : ""; // all of them are in the table below
    save(`${name}${part}.csv`, [csv([columns, ...rows])], "text/csv");
  },
};
for (const button of document.querySelectorAll("[data-download]")) {
  const figure = button.closest("figure");
  button.addEventListener("click", () => downloads[button.dataset.download](figure, figure.id.replace("figure-", "")));
}

/* figures */
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
    byId("copy-rows").addEventListener("click", () => copy(byId("copy-rows"), this.lines().map((line) => line.map((value) => value ?? "").join("\t")).join("\n")));
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
    this.choose(name);
    this.ready = true;
    if (ids.length) choose([], true, ids[0]);
    if (view.has("beside")) this.beside();
  }

  keep(more = {}) {
    if (!this.ready) return;
    const sort = this.sorted && `${this.sorted.ascending ? "" : "-"}${this.sorted.name}`;
    const first = Object.keys(this.tables)[0];
    const view = { table: this.name === first ? "" : this.name, filter: byId("filter").value, sort, only: byId("only").checked && "1", select: [...chosen].join(","), ...more };
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
    return element("label", { title: column.description }, box, ` ${column.name}`);
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
    this.scroll.scrollTop = 0;
    this.paint();
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
        if (/[<>]/.test(sign) && (wanted === "" || Number.isNaN(Number(wanted)))) {
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
      const on = chosen.has(this.id(row));
      line.classList.toggle("on", on);
      line.cells[0]?.prepend(element("input", { type: "checkbox", checked: on, tabIndex: -1, ariaLabel: `${words.select} ${this.key(row, this.name)}` }));
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
    if (!line) return;
    const row = Number(line.dataset.row);
    const record = this.record(row);
    const facts = element("dl", { className: "facts" });
    for (const [name, value] of Object.entries(record)) if (value !== null && value !== "") facts.append(element("dt", { textContent: name }), element("dd", { textContent: shown(value) }));
    const detail = this.details[`${record.recorded ? "recorded/" : ""}${record.hardware}/${this.name}/${record.run}`];
    byId("run-title").replaceChildren(...record.run.split(/(?<=,)/).flatMap((part) => [part, element("wbr")]));
    byId("run-body").replaceChildren(...(record.verdict ? [element("p", {}, element("strong", { textContent: record.verdict }), `: ${record.verdict_reason}`)] : []), ...icicle(record, detail), ...(detail ? describe(detail) : []), element("h3", { textContent: words.row }), facts);
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
  const parts = detail.folder ? [element("p", { className: "provenance", textContent: `${words.folder} ${detail.folder}` })] : [];
  if (detail.ranks) parts.push(element("h3", { textContent: words.ranks }), ranks(detail.ranks));
  if (detail.operators) parts.push(element("h3", { textContent: words.operators }), list(detail.operators));
  for (const kind of ["samples", "series"]) {
    for (const [name, points] of Object.entries(detail[kind] ?? {})) {
      if (name !== "time_s" || kind === "samples") parts.push(element("h3", { textContent: `${words[kind]}: ${name}` }), spark(points));
    }
  }
  if (detail.config) parts.push(element("h3", { textContent: words.config }), element("pre", { textContent: JSON.stringify(detail.config, null, 1) }));
  if (detail.log) parts.push(element("h3", { textContent: words.log }), element("pre", { textContent: detail.log }));
  return parts;
}

// ---- a run's time, part by part: each line divides the step anew

function icicle(record, detail) {
  const whole = 1e3 * Number(record.time_s);
  if (!(whole > 0)) return [];
  const named = (columns) => Object.entries(columns).map(([column, name]) => ({ name, ms: Number(record[column]) })).filter(({ ms }) => ms > 0);
  const shares = (text) => Object.entries(text ? JSON.parse(text) : {}).map(([name, percent]) => ({ name, ms: (whole * percent) / 100 }));
  const levels = [
    [words.budget, named(groups.budget)],
    [words.phases, named(groups.phases)],
    [words.operators, detail?.operators ? detail.operators.map((each) => ({ name: each.operator, ms: (whole * Number(each.share_percent)) / 100 })) : shares(record.top_other_operators)],
    [words.kernels, shares(record.top_kernels)],
  ].filter(([, parts]) => parts.length);
  if (!levels.length) return [];
  const line = (parts) => {
    const left = whole - parts.reduce((sum, { ms }) => sum + ms, 0);
    const all = left > whole / 1e3 ? [...parts, { name: words.rest, ms: left, rest: true }] : parts;
    const says = all.map(({ name, ms }) => `${name} ${shown(ms)} ms, ${shown((100 * ms) / whole)} %`);
    return element("div", { className: "icicle", role: "img", ariaLabel: says.join("; ") }, ...all.map(({ name, ms, rest }, index) => {
      const part = element("span", { title: says[index], textContent: ms > whole / 20 ? `${name} ${shown(ms)}` : "", className: rest ? "rest" : "" });
      part.style.flexGrow = ms;
      if (!rest) Object.assign(part.style, { background: `color-mix(in srgb, var(--c${index % 8}) 35%, var(--paper))` });
      return part;
    }));
  };
  return [
    element("h3", { textContent: words.drill }), element("p", { className: "provenance", textContent: words.drill_help }),
    line([{ name: words.step, ms: whole }]),
    ...levels.flatMap(([title, parts]) => [element("p", { className: "provenance", textContent: title }), line(parts)]),
  ];
}

// ---- two runs: what differs in their names, which hold every key, then times, budget, ladder and verdict

function besides(one, two) {
  const config = (record) => Object.fromEntries([["hardware", record.hardware], ...record.run.split(/,(?=[\w.]+=)/).map((part) => part.split(/=(.*)/s).slice(0, 2))]);
  const [a, b] = [config(one), config(two)];
  const keys = Object.keys({ ...a, ...b }).filter((key) => a[key] !== b[key]);
  const change = (x, y) => (x > 0 && y > 0 ? `${shown(y - x)} (×${shown(y / x)})` : x === null || y === null || x === undefined || y === undefined ? "" : shown(y - x));
  const between = (record) => (record.time_ci_low_s ? `${shown(record.time_s)} (${shown(record.time_ci_low_s)} … ${shown(record.time_ci_high_s)})` : shown(record.time_s));
  const meet = one.time_ci_low_s && two.time_ci_low_s && (one.time_ci_low_s <= two.time_ci_high_s && two.time_ci_low_s <= one.time_ci_high_s ? words.meet : words.apart);
  const numbers = (names) => Object.entries(names).filter(([column]) => [one, two].some((record) => typeof record[column] === "number")).map(([column, name]) => [name, shown(one[column]), shown(two[column]), change(one[column], two[column])]);
  const part = (title, lines) => (lines.length ? [element("tr", {}, element("th", { colSpan: 4, scope: "colgroup", textContent: title })), ...lines.map((cells) => element("tr", {}, ...cells.map((textContent, index) => element(index ? "td" : "th", { textContent: textContent ?? "", className: index ? "number" : "" }))))] : []);
  const head = element("tr", {}, ...["", one.run, two.run, words.difference].map((textContent) => element(textContent ? "th" : "td", { textContent })));
  return [element("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: words.side_by_side }, element("table", { className: "beside" }, head,
    ...(keys.length ? part(words.settings, keys.map((key) => [key, a[key], b[key], ""])) : part(words.same_settings, [["", "", "", ""]])),
    ...part(words.times, [["time_s", between(one), between(two), [change(one.time_s, two.time_s), meet].filter(Boolean).join(", ")]]),
    ...part(words.ladder, numbers(groups.ladder)),
    ...part(words.budget, numbers(groups.budget)),
    ...part(words.phases, numbers(groups.phases)),
    ...(one.verdict || two.verdict ? part(words.verdict, [["", one.verdict, two.verdict, ""]]) : [])))];
}

// A rank a line, under the names of their values.
function ranks(records) {
  const names = Object.keys(records[0]).filter((name) => records.some((record) => record[name] !== null));
  const cells = (kind, texts) => element("tr", {}, ...texts.map((textContent) => element(kind, { textContent })));
  return element("table", {}, cells("th", names), ...records.map((record) => cells("td", names.map((name) => shown(record[name])))));
}

// An operator a line: its name, shapes and calls, its time, and its share of the traced time as a bar.
function list(records) {
  const longest = Math.max(...records.map((record) => Number(record.share_percent) || 0), 1e-9);
  return element("ul", { className: "operators" }, ...records.map((record) => {
    const share = Number(record.share_percent) || 0;
    const bar = element("span", { className: "bar" });
    bar.style.width = `${(100 * share) / longest}%`;
    const calls = record.calls ? ` × ${record.calls}` : "";
    return element("li", {},
      element("span", {}, element("strong", { textContent: record.operator ?? "" }), calls),
      element("span", { className: "number", textContent: `${shown(1e3 * Number(record.time_s || 0))} ms, ${shown(share)} %` }),
      bar,
      element("small", { textContent: record.input_shapes ?? "" }));
  }));
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

if (byId("grid")) data.then(({ tables, details }) => new Grid(tables, details));

// ---- a run's dialog: its row, config, samples, operators and log

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
  const roofs = JSON.parse(record.operator_roofline || "[]");
  const shares = (text) => Object.entries(text ? JSON.parse(text) : {}).map(([name, percent]) => ({ name, ms: (whole * percent) / 100 }));
  const timeline = JSON.parse(record.timeline || "[]");
  const [bins, kinds] = [timeline.reduce((sum, [, count]) => sum + count, 0), [...new Set(timeline.map(([kind]) => kind))]];
  const levels = [
    [words.timeline, timeline.map(([kind, count]) => ({ name: said(kind), ms: (whole * count) / bins, hue: kinds.indexOf(kind), rest: kind === "idle" }))],
    [words.budget, named(groups.budget)],
    [words.phases, named(groups.phases)],
    [words.operators, roofs.length ? roofs.map((each) => ({ name: said(each.operator ?? each.kind), ms: each.time_ms })) : detail?.operators ? detail.operators.map((each) => ({ name: each.operator, ms: (whole * Number(each.share_percent)) / 100 })) : shares(record.top_other_operators)],
    [words.kernels, shares(record.top_kernels)],
  ].filter(([, parts]) => parts.length);
  if (!levels.length) return [];
  const line = (parts) => {
    const left = whole - parts.reduce((sum, { ms }) => sum + ms, 0);
    const all = left > whole / 1e3 ? [...parts, { name: words.rest, ms: left, rest: true }] : parts;
    const says = all.map(({ name, ms }) => `${name} ${shown(ms)} ms, ${shown((100 * ms) / whole)} %`);
    return element("div", { className: "icicle", role: "img", ariaLabel: says.join("; ") }, ...all.map(({ name, ms, rest, hue }, index) => {
      const part = element("span", { title: says[index], textContent: ms > whole / 20 ? `${name} ${shown(ms)}` : "", className: `${rest ? "rest" : ""} ${hue === undefined ? "" : "thin"}`.trim() });
      part.style.flexGrow = ms;
      if (!rest) Object.assign(part.style, { background: `color-mix(in srgb, var(--c${(hue ?? index) % 8}) 35%, var(--paper))` });
      return part;
    }));
  };
  return [
    element("h3", { textContent: words.drill }), element("p", { className: "provenance", textContent: words.drill_help }),
    line([{ name: words.step, ms: whole }]),
    ...levels.flatMap(([title, parts]) => [element("p", { className: "provenance", textContent: title }), line(parts)]),
    ...modules(JSON.parse(record.module_times || "[]"), whole),
    ...(roofs.length ? roofline(roofs) : []),
  ];
}

const said = (key) => groups.trace[key] ?? key;

// A step's operators by what is to gain: the best time that the device's peaks allow each, and what bounds it.
function roofline(roofs) {
  const lines = roofs.map((each) => [said(each.operator ?? each.kind), each.shapes ?? "", each.bound ? said(each.bound) + (each.doubtful ? said("doubtful") : "") : "", ...[each.time_ms, each.best_ms, each.headroom_ms].map(shown)]);
  return grid("operators", ["operator", "shapes", "bound", "ms", "best", "headroom"], lines, 3);
}

// A step by the model's modules, or by marked ranges: each with all that lies in it, under what it lies in.
function modules(found, whole) {
  const lines = found.filter(({ depth }) => depth).map((each) => ["\u2003".repeat(each.depth - 1) + each.name, each.calls, ...[each.ms, (100 * each.ms) / whole, each.flops / 1e9, each.mfu_percent].map(shown)]);
  return lines.length ? grid("modules", ["module", "calls", "ms", "share", "gflop", "mfu"], lines, 1) : [];
}

function grid(title, heads, lines, texts) {
  const row = (kind, cells) => element("tr", {}, ...cells.map((textContent, place) => element(kind, { textContent, className: place >= texts ? "number" : "" })));
  const table = element("table", { className: "beside parts" }, row("th", heads.map(said)), ...lines.map((cells) => row("td", cells)));
  return [element("h3", { textContent: said(title) }), element("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: said(title) }, table)];
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

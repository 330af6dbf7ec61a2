// ---- a run's dialog: its row, config, samples, operators and log

const SI = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
const UNIT_OF = [[/percent$/, "%"], [/tflop_s$/, "FLOP/s", 1e12], [/per_s$/, ""], [/gb_s$/, "B/s", 1e9], [/per_j$/, ""], [/_ms$/, "s", 1e-3], [/_s$/, "s"], [/bytes$/, "B"], [/_j$/, "J"], [/flops$/, "FLOP"]];

// A number as a person reads it: by its column's unit with a prefix, otherwise as it stands unless it is huge or tiny.
function shown(value, column = "") {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  const digits = (number, most = 4) => String(Number(number.toPrecision(most))).replace(/^-/, "−");
  const [, unit, times = 1] = UNIT_OF.find(([ending]) => ending.test(column)) ?? [];
  const size = Math.abs(value * times);
  if (unit === "%") return `${size && size < 1e-3 ? "< 0.001" : digits(value)}${words.percent_sign}`;
  const bare = unit === undefined ? size < 1e6 : unit === "" && size < 1; // 0.645 samples per second are no "645 m"
  if (bare && (size >= 1e-3 || !size)) return digits(value, Number.isInteger(value) ? 7 : 4);
  const [factor, prefix] = size ? SI.find(([each]) => size >= each * 0.9999) ?? SI.at(-1) : [1, ""];
  return `${digits((value * times) / factor)} ${prefix}${unit ?? ""}`.trim();
}

// A run's MFU over its commits: the same step on the same device, whose FLOPs and peak are those of today.
function over_commits(record, earlier = []) {
  const all = [...earlier, record].filter((each) => each.time_s > 0);
  if (!earlier.length || !(record.time_s > 0)) return [];
  const mfu = (each) => (record.mfu_percent * record.time_s) / Number(each.time_s);
  return lined("over_commits", ["measured_at", "commit", "ms", "mfu"], all.map((each) => [each.started_at, (each.commit ?? "").slice(0, 8), shown(1e3 * each.time_s), record.mfu_percent ? shown(mfu(each)) : ""]), 2);
}

function describe(detail) {
  const parts = detail.folder ? [element("p", { className: "provenance", textContent: `${words.folder} ${detail.folder}` })] : [];
  if (detail.ranks) parts.push(element("h3", { textContent: words.ranks }), ranks(detail.ranks));
  if (detail.operators) parts.push(element("h3", { textContent: words.operators }), list(detail.operators));
  const unchanged = {};
  for (const kind of ["samples", "series"]) {
    for (const [name, points] of Object.entries(detail[kind] ?? {})) {
      if (name === "time_s" && kind === "series") continue;
      const distinct = new Set(points.filter((value) => value !== null));
      if (distinct.size > 1) parts.push(element("h3", { textContent: `${words[kind]}: ${name}` }), spark(points));
      else if (distinct.size) unchanged[name] = [...distinct][0];
    }
  }
  if (Object.keys(unchanged).length) parts.push(element("h3", { textContent: words.unchanged }), facts(unchanged));
  if (detail.config) parts.push(element("h3", { textContent: words.config }), facts(flat(detail.config)));
  if (detail.log) parts.push(element("h3", { textContent: words.log }), element("pre", { textContent: detail.log }));
  return parts;
}

// Values of a nested config by their dotted keys.
function flat(config, before = "") {
  return Object.assign({}, ...Object.entries(config).map(([key, value]) => (value && typeof value === "object" && !Array.isArray(value) ? flat(value, `${before}${key}.`) : { [before + key]: Array.isArray(value) ? value.join(", ") : value })));
}

function facts(record) {
  const list = element("dl", { className: "facts" });
  for (const [name, value] of Object.entries(record)) if (value !== null && value !== "" && !/^[[{]/.test(value)) list.append(element("dt", { textContent: name }), element("dd", { textContent: shown(value, name) }));
  return list;
}

// ---- a run's time, part by part: each line divides the step anew

const DIFFERS = 0.05; // of the step, by which the steps of its phases may differ without a sentence

// A CPU launches no kernels, so that its trace has no time in which any ran.
const idle_of = (...records) => (records.some((record) => record.kernel_busy_percent) ? groups.trace.idle : groups.trace.idle_of_cpu);

function icicle(record, detail) {
  const whole = 1e3 * Number(record.time_s);
  if (!(whole > 0)) return [];
  const named = (columns) => Object.entries(columns).map(([column, name]) => ({ name, ms: Number(record[column]), color: colors[column] })).filter(({ ms }) => ms > 0);
  const roofs = JSON.parse(record.operator_roofline || "[]");
  const called = (key) => (key === "idle" ? idle_of(record) : said(key));
  const shares = (text) => Object.entries(text ? JSON.parse(text) : {}).filter(([, percent]) => percent > 0).map(([name, percent]) => ({ name, ms: (whole * percent) / 100 }));
  const idle = (percent) => (percent > 0 ? [{ name: idle_of(record), ms: (whole * percent) / 100, color: colors.idle_ms }] : []);
  const operators = () => {
    if (roofs.length) return summed(roofs.map((each) => ({ name: called(each.operator ?? each.kind), ms: each.time_ms })));
    const outside = Object.entries(detail?.outside_operators ?? {}).map(([kind, percent]) => ({ name: called(kind), ms: (whole * percent) / 100, color: colors[`${kind}_ms`] }));
    // Operators whose share of the step is unknown are in the list below alone.
    const placed = (detail?.operators ?? []).filter(({ share_percent }) => Number(share_percent) > 0);
    return placed.length ? [...summed(placed.map((each) => ({ name: each.operator, ms: (whole * Number(each.share_percent)) / 100 }))), ...outside] : [];
  };
  const timeline = JSON.parse(record.timeline || "[]");
  const [bins, kinds] = [timeline.reduce((sum, [, count]) => sum + count, 0), [...new Set(timeline.map(([kind]) => kind))]];
  // Phases are timed in steps of their own, so they are shares of their sum, as on the cards, here of this step.
  const timed = named(groups.phases);
  const total = timed.reduce((sum, { ms }) => sum + ms, 0);
  const phases = timed.map((part) => ({ ...part, ms: (whole * part.ms) / total }));
  const marked = Number(record.phases_percent) || 100; // % of the same steps without marks
  const differs = phases.length && [total / whole, marked / 100].some((share) => Math.abs(share - 1) > DIFFERS);
  const scaled = differs ? words.phases_scaled.replace("{time}", shown(three(total), "_ms")).replace("{share}", shown(three(marked), "percent")) : "";
  // Kernels are shares of the time in which one ran.
  const busy = 100 - (Number(record.idle_percent) || 0);
  // The row has no list of all its operators, but its matmuls' share, and the longest of the others.
  const matmuls = Number(record.matmul_percent) > 0 ? [{ name: words.matmuls, ms: (whole * Number(record.matmul_percent)) / 100 }] : [];
  const others = shares(record.top_other_operators);
  const levels = [
    [words.timeline, timeline.map(([kind, count]) => ({ name: called(kind), ms: (whole * count) / bins, hue: kinds.indexOf(kind), color: colors[`${kind}_ms`], rest: kind === "idle" }))],
    [words.budget, named({ ...groups.budget, idle_ms: idle_of(record) })],
    [words.phases, phases, scaled],
    operators().length ? [words.operators, operators()] : [words.other_operators, others.length ? [...matmuls, ...others] : []],
    [words.kernels, record.top_kernels ? [...shares(record.top_kernels).map((part) => ({ ...part, ms: (part.ms * busy) / 100, label: brief(part.name) })), ...idle(100 - busy)] : []],
  ].filter(([, parts]) => parts.length);
  if (!levels.length) return [];
  const line = (parts, note = "") => {
    const left = whole - parts.reduce((so_far, { ms }) => so_far + ms, 0);
    const all = left > whole / 1e3 ? [...parts, { name: words.rest, ms: left, rest: true }] : parts;
    const says = all.map(({ name, label, ms }) => `${label ?? name} ${shown(three(ms), "_ms")}, ${shown(three((100 * ms) / whole), "percent")}`);
    const ink = ({ color, hue, rest }, index) => color ?? (rest ? "var(--grid)" : `color-mix(in srgb, var(--c${(hue ?? index) % 8}) 35%, var(--paper))`);
    const bar = element("div", { className: "icicle", role: "img", ariaLabel: says.join("; ") }, ...all.map((part, index) => {
      const drawn = element("span", { title: part.label ? `${says[index]}: ${part.name}` : says[index], className: part.hue === undefined ? "" : "thin" });
      // In percent: parts whose growth sums to less than 1 would leave some of the bar empty.
      Object.assign(drawn.style, { flexGrow: (100 * part.ms) / whole, background: ink(part, index) });
      return drawn;
    }));
    const named = new Map(all.map((part, index) => [part.name, [part, index]])); // a part that comes again is named once
    const key = [...named.values()].filter(([{ ms, hue }]) => hue !== undefined || ms >= whole / 50).map(([part, index]) => {
      const square = element("i", {});
      square.style.background = ink(part, index);
      return element("span", {}, square, part.hue === undefined ? says[index] : part.name);
    });
    return [...(all.length > 1 ? [bar] : []), element("p", { className: "key" }, ...key), ...(note ? [element("p", { className: "provenance", textContent: note })] : [])];
  };
  return [
    element("h3", { textContent: words.drill }), element("p", { className: "provenance", textContent: `${words.step} ${shown(three(whole), "_ms")}. ${words.drill_help}` }),
    ...levels.flatMap(([title, parts, note]) => [element("p", { className: "provenance", textContent: title }), ...line(parts, note)]),
    ...modules(JSON.parse(record.module_times || "[]"), whole),
    ...(roofs.length ? roofline(roofs) : []),
  ];
}

const three = (number) => Number(number.toPrecision(3)); // digits that a share of a traced step is good for

// A kernel's name without namespaces, templates and arguments, with the function that a general one applies.
function brief(name) {
  if (!name.includes("<")) return name;
  const plain = name.replaceAll("(anonymous namespace)::", "");
  const own = plain.split(/[<(]/)[0].split(/::| /).at(-1);
  const functors = plain.match(/\w*(?:Functor\w*|_functor|gemm\w*)/g) ?? [];
  const applied = functors.at(-1) ?? plain.match(/(\w+)\(at::Tensor/)?.[1];
  return applied && applied !== own ? `${own} · ${applied}` : own;
}

// Parts of one name as one part, the longest first: an operator over all of its shapes.
function summed(parts) {
  const found = new Map();
  for (const { name, ms } of parts) found.set(name, (found.get(name) ?? 0) + ms);
  return [...found].map(([name, ms]) => ({ name, ms })).sort((a, b) => b.ms - a.ms);
}

const said = (key) => groups.trace[key] ?? key;

const BEYOND = 100.5; // % from which a share of a ceiling is above it beyond rounding
const beyond = (isFound) => (isFound ? [element("p", { className: "provenance", textContent: `* ${words.beyond}` })] : []);

// A step's operators by what is to gain: the best time that the device's peaks allow each, and what bounds it.
function roofline(roofs) {
  const isFaster = ({ time_ms, best_ms }) => 100 * best_ms > BEYOND * time_ms;
  const lines = roofs.map((each) => [said(each.operator ?? each.kind), each.shapes ?? "", each.bound ? said(each.bound) + (each.doubtful ? said("doubtful") : "") : "", shown(each.time_ms), shown(each.best_ms) + (isFaster(each) ? " *" : ""), shown(each.headroom_ms)]);
  return [...lined("operators", ["operator", "shapes", "bound", "ms", "best", "headroom"], lines, 3), ...beyond(roofs.some(isFaster))];
}

// A step by the model's modules, or by marked ranges: each with all that lies in it, under what it lies in.
function modules(found, whole) {
  const isFaster = ({ mfu_percent }) => mfu_percent > BEYOND;
  const inside = found.filter(({ depth }) => depth);
  const lines = inside.map((each) => ["\u2003".repeat(each.depth - 1) + each.name, each.calls, ...[each.ms, (100 * each.ms) / whole, each.flops / 1e9].map((number) => shown(number)), shown(each.mfu_percent) + (isFaster(each) ? " *" : "")]);
  if (!lines.length) return [];
  return [...lined("modules", ["module", "calls", "ms", "share", "gflop", "mfu"], lines, 1), ...beyond(inside.some(isFaster))];
}

function lined(title, heads, lines, texts) {
  const row = (kind, cells) => element("tr", {}, ...cells.map((textContent, place) => element(kind, { textContent, className: place >= texts ? "number" : "" })));
  const table = element("table", { className: "beside parts" }, row("th", heads.map(said)), ...lines.map((cells) => row("td", cells)));
  return [element("h3", { textContent: said(title) }), element("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: said(title) }, table)];
}

// ---- two runs: what differs in their names, which hold every key, then times, budget, ladder and verdict

function besides(one, two) {
  const config = (record) => Object.fromEntries([["hardware", record.hardware], ...record.run.split(/,(?=[\w.]+=)/).map((part) => part.split(/=(.*)/s).slice(0, 2))]);
  const [a, b] = [config(one), config(two)];
  const keys = Object.keys({ ...a, ...b }).filter((key) => a[key] !== b[key]);
  const change = (x, y, column) => {
    if (typeof x !== "number" || typeof y !== "number") return "";
    if (/percent$/.test(column)) return words.points.replace("{count}", shown(y - x)); // of two shares of one whole
    return x > 0 && y > 0 ? `${shown(y - x, column)} (×${shown(y / x)})` : shown(y - x, column);
  };
  const time = (seconds) => shown(seconds, "time_s");
  const between = (record) => (record.time_ci_low_s ? `${time(record.time_s)} (${time(record.time_ci_low_s)} … ${time(record.time_ci_high_s)})` : time(record.time_s));
  // A doubtful time may be off by more than its interval.
  const low = (record) => record.time_ci_low_s / (record.reach ?? 1);
  const high = (record) => record.time_ci_high_s * (record.reach ?? 1);
  const is_known = one.time_ci_low_s && two.time_ci_low_s;
  const is_within = is_known && low(one) <= high(two) && low(two) <= high(one);
  // A difference within the intervals has no number.
  const of_times = is_within ? [words.meet] : [change(one.time_s, two.time_s, "time_s"), is_known ? words.apart : ""];
  const numbers = (names) => Object.entries(names).filter(([column]) => [one, two].some((record) => record[column])).map(([column, name]) => [name, shown(one[column], column), shown(two[column], column), change(one[column], two[column], column)]);
  const part = (title, lines) => (lines.length ? [element("tr", {}, element("th", { colSpan: 4, scope: "colgroup", textContent: title })), ...lines.map((cells) => element("tr", {}, ...cells.map((textContent, index) => element(index ? "td" : "th", { textContent: textContent ?? "", className: index ? "number" : "" }))))] : []);
  const head = element("tr", {}, ...["", one.run, two.run, words.difference].map((name) => element(name ? "th" : "td", {}, ...broken(name))));
  return [element("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: words.side_by_side }, element("table", { className: "beside" }, head,
    ...(keys.length ? part(words.settings, keys.map((key) => [key, a[key], b[key], ""])) : part(words.same_settings, [["", "", "", ""]])),
    ...part(words.times, [[groups.times.time_s, between(one), between(two), of_times.filter(Boolean).join(", ")], ...numbers({ samples_per_s: groups.times.samples_per_s }).map((cells) => (is_within ? cells.with(-1, "") : cells))]),
    ...part(words.ladder, numbers(groups.ladder)),
    ...part(words.budget, numbers({ ...groups.budget, idle_ms: idle_of(one, two) })),
    ...part(words.phases, numbers(groups.phases)),
    ...(one.verdict || two.verdict ? part(words.verdict, [["", one.verdict, two.verdict, ""]]) : [])))];
}

// A run's name, which breaks behind its commas alone.
const broken = (name) => name.split(/(?<=,)/).flatMap((part) => [part, element("wbr")]);

// A rank a line, under the names of their values.
function ranks(records) {
  const names = Object.keys(records[0]).filter((name) => records.some((record) => record[name] !== null));
  const cells = (kind, texts) => element("tr", {}, ...texts.map((textContent) => element(kind, { textContent })));
  return element("table", {}, cells("th", names), ...records.map((record) => cells("td", names.map((name) => shown(record[name], name)))));
}

// Operators over all of their shapes, the longest first.
function by_operator(records) {
  const found = new Map();
  for (const record of records) {
    const name = record.operator ?? "";
    const sum = found.get(name) ?? { name, calls: 0, time_s: 0, share: 0, shapes: [] };
    sum.calls += Number(record.calls) || 0;
    sum.time_s += Number(record.time_s) || 0;
    sum.share += Number(record.share_percent) || 0;
    sum.shapes.push([record.input_shapes ?? "", Number(record.share_percent) || 0]);
    found.set(name, sum);
  }
  return [...found.values()].sort((a, b) => b.time_s - a.time_s);
}

// An operator a line: its name and calls, its time, its share of the traced pass if known, its time as a bar, and the share of each shape.
function list(records) {
  const operators = by_operator(records);
  const longest_s = Math.max(...operators.map((each) => each.time_s), 1e-12);
  return element("ul", { className: "operators" }, ...operators.map(({ name, calls, time_s, share, shapes }) => {
    const bar = element("span", { className: "bar" });
    bar.style.width = `${(100 * time_s) / longest_s}%`;
    const of_shape = ([shape, part]) => (shapes.length > 1 && part ? `${shape}: ${shown(part, "percent")}` : shape);
    return element("li", {},
      element("span", {}, element("strong", { textContent: name }), calls ? ` × ${calls}` : ""),
      element("span", { className: "number", textContent: [shown(time_s, "time_s"), ...(share ? [shown(share, "percent")] : [])].join(", ") }),
      bar,
      ...shapes.map((each) => element("small", { textContent: of_shape(each) })));
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

const grid = data.then(({ tables, details }) => (byId("grid") ? new Grid(tables, details) : null));
for (const lane of document.querySelectorAll(".lanes [data-key]")) lane.addEventListener("click", () => grid.then((table) => table?.openRun(checksum(lane.dataset.key))));

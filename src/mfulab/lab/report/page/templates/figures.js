// ---- selection: runs chosen in a figure or in the table, by the checksum that a figure's marks carry

const chosen = new Set();
const watchers = []; // called with the id to be shown, after each change
function checksum(text) {
  let sum = -1;
  for (const byte of new TextEncoder().encode(text)) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (0xedb88320 & -(sum & 1));
  }
  return (~sum >>> 0).toString(16).padStart(8, "0");
}

function choose(ids, add = false, seen = ids[0]) {
  const single = ids.length === 1 && chosen.has(ids[0]); // chosen again: given back
  if (!add) chosen.clear();
  for (const id of ids) if (single) chosen.delete(id); else chosen.add(id);
  byId("selected").hidden = !chosen.size;
  byId("selected").firstElementChild.textContent = words.selected.replace("{count}", chosen.size);
  byId("beside").hidden = chosen.size !== 2;
  for (const watch of watchers) watch(seen);
}
byId("clear").addEventListener("click", () => choose([]));

// ---- figures: marks choose rows and say their values; a dragged box is chosen; panels are stacked on a narrow screen

const SVG = "http://www.w3.org/2000/svg";
const narrow = matchMedia("(max-width: 40rem)");
const WIDE = 520; // units of a panel that a phone shows legibly only squeezed
function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}
const inside = ({ x, y, width, height }, { x: left, y: top, width: wide, height: high }) =>
  x + width / 2 >= left && x + width / 2 <= left + wide && y + height / 2 >= top && y + height / 2 <= top + high;

// What a mark says, beside it, with a button that opens its run.
const tip = byId("tip");
function say(mark, id) {
  const [name, values = ""] = (mark.querySelector("title")?.textContent ?? "").split(/: (.*)/s);
  const open = element("button", { type: "button", textContent: words.open });
  open.addEventListener("click", () => grid.then((table) => table?.openRun(id)));
  const lines = values.split(", ").filter(Boolean).map((line) => line.split(/ (?=\S*$)/)).map(([column, value]) => element("div", { textContent: `${column.replace(/_(percent|s)$/, "")}: ${shown(Number(value), column)}` }));
  tip.replaceChildren(element("strong", { textContent: name }), ...lines, open);
  mark.closest(".drawing, #axes-plot")?.after(tip); // the next stop of the tab key
  tip.hidden = false;
  const [at, size] = [mark.getBoundingClientRect(), tip.getBoundingClientRect()];
  tip.style.left = `${Math.max(4, Math.min(at.right + 8, innerWidth - size.width - 4))}px`;
  tip.style.top = `${Math.max(4, at.top - size.height - 8 < 0 ? at.bottom + 8 : at.top - size.height - 8)}px`;
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
addEventListener("keydown", ({ key }) => { if (key === "Escape") tip.hidden = true; });
addEventListener("pointerdown", ({ target }) => { if (!tip.contains(target)) tip.hidden = true; });

class Drawing {
  constructor(box) {
    Object.assign(this, { box, svg: box.querySelector("svg"), marks: [...box.querySelectorAll("[data-run]")], at: -1 });
    if (!this.svg) return;
    this.view = this.svg.getAttribute("viewBox");
    box.addEventListener("click", (event) => this.clicked(event));
    box.addEventListener("keydown", (event) => this.pressed(event));
    this.entries = this.entriesOf();
    for (const { nodes, color } of this.entries) for (const node of color ? nodes : []) node.addEventListener("click", (event) => { event.stopPropagation(); this.filter(nodes, color); });
    if (!this.marks.length) return;
    box.setAttribute("role", "application"); // its marks take the arrow keys
    this.live = element("span", { role: "status" });
    box.after(element("div", { className: "tools" }, this.live));
    this.svg.addEventListener("pointerdown", (event) => this.drag(event));
    watchers.push(() => this.show());
  }

  get panels() { return this.found ??= [...this.svg.querySelectorAll(".panel")].map((each) => new Panel(each)); }

  show() {
    let any = false;
    for (const mark of this.marks) any = mark.classList.toggle("on", chosen.has(mark.dataset.run)) || any;
    this.svg.classList.toggle("choosing", any);
  }

  clicked(event) {
    const mark = event.target.closest?.("[data-run]");
    if (mark) {
      choose([mark.dataset.run], event.shiftKey || event.ctrlKey || event.metaKey);
      say(mark, mark.dataset.run);
    } else if (!this.dragged) this.large((event.clientX - this.box.getBoundingClientRect().left) / this.box.clientWidth);
    this.dragged = false;
  }

  large(share) {
    this.box.classList.toggle("large");
    this.box.scrollLeft = share * this.box.scrollWidth - this.box.clientWidth / 2; // what was touched stays in view
  }

  pressed(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step && this.marks.length) {
      event.preventDefault();
      this.marks[this.at]?.classList.remove("at");
      this.at = (this.at + step + this.marks.length + (this.at < 0 && step < 0)) % this.marks.length;
      this.marks[this.at].classList.add("at");
      this.live.textContent = this.marks[this.at].querySelector("title")?.textContent ?? "";
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const mark = this.marks[this.at];
      if (!mark) return this.large(0.5);
      choose([mark.dataset.run], true);
      say(mark, mark.dataset.run);
    }
  }

  // A box over marks chooses them.
  drag(start) {
    if (start.pointerType === "touch" || start.button) return;
    const where = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    const from = where(start);
    let box = null;
    const move = (event) => {
      const to = where(event);
      if (!box && Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) < 5) return;
      box ??= this.svg.appendChild(shape("rect", { "class": "box" }));
      for (const [name, value] of Object.entries({ x: Math.min(from.x, to.x), y: Math.min(from.y, to.y), width: Math.abs(to.x - from.x), height: Math.abs(to.y - from.y) })) box.setAttribute(name, value);
      event.preventDefault();
    };
    const end = (event) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      if (!box) return;
      const seen = box.getBoundingClientRect();
      box.remove();
      this.dragged = true;
      choose([...new Set(this.marks.filter((mark) => inside(mark.getBoundingClientRect(), seen)).map((mark) => mark.dataset.run))], event.shiftKey);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  }

  // The legend's entries: their nodes, and the colour of their handle where it is that of marks.
  entriesOf() {
    let entry = [];
    return [...this.svg.querySelectorAll(".legend > g")].flatMap((node) => {
      entry.push(node);
      if (!node.querySelector("use[href^='#L']")) return [];
      const nodes = entry.splice(0);
      const style = nodes.map((each) => each.innerHTML.match(/(?:fill|stroke): (var\(--c\d\)|#[0-9a-f]{6})/)).find(Boolean);
      return [{ nodes, color: style?.[1] }];
    });
  }

  // Hides what is drawn in an entry's colour, or shows it again.
  filter(nodes, color) {
    this.labelled ??= [...this.svg.querySelectorAll(".panel")].flatMap((panel) => this.labelsOf(panel));
    const off = nodes.map((node) => node.classList.toggle("off"))[0];
    for (const drawn of this.svg.querySelectorAll(".panel > :not(.axis) [style], .panel > :not(.axis)[style]")) if (drawn.getAttribute("style").includes(color)) drawn.classList.toggle("hidden", off);
    for (const { label, mark } of this.labelled) label.classList.toggle("hidden", mark.matches(":has(.hidden)"));
  }

  // Each label of a panel with the mark that it is nearest to; where each mark has a row, names of rows and labels with the mark in it.
  labelsOf(panel) {
    const marks = [...panel.querySelectorAll("[data-run]")].map((mark) => ({ mark, ...middle(mark) }));
    if (!marks.length) return [];
    const names = [...panel.querySelectorAll(":scope > .axis")].at(-1)?.querySelectorAll(".text") ?? [];
    const is_row_each = names.length === marks.length;
    const labels = [...panel.querySelectorAll(":scope > .text, :scope > .value"), ...(is_row_each ? names : [])];
    return labels.map((label) => {
      const { x, y } = middle(label);
      const distance = (mark) => (is_row_each ? Math.abs(mark.y - y) : Math.hypot(mark.x - x, mark.y - y));
      return { label, mark: marks.reduce((best, mark) => (distance(mark) < distance(best) ? mark : best)).mark };
    });
  }

  // Panels below one another, each with the names of its axes; the legend in lines as wide as they are.
  stack() {
    if (!this.svg?.getBoundingClientRect().width || this.svg.classList.contains("stack") === narrow.matches) return;
    if (!narrow.matches) return this.unstack();
    const stacked = this.places();
    if (this.sideways || !stacked.length) return;
    let boxes = stacked.map((group) => this.whole(group, stacked));
    if (boxes.some((box) => box.width > WIDE)) {
      this.sideways = !this.squeeze(); // what cannot be told in less width is read sideways
      if (this.sideways) return this.unstack();
      boxes = stacked.map((group) => this.whole(group, stacked));
    }
    const width = Math.max(...boxes.map((box) => box.width), 240) + 8;
    let top = this.legend(width);
    stacked.forEach((group, index) => {
      for (const { group: node } of group) node.setAttribute("transform", `translate(${4 - boxes[index].x} ${top - boxes[index].y})`);
      top += boxes[index].height + 14;
    });
    for (const panel of this.panels) panel.group.classList.toggle("scale", panel.isScale);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${top}`);
    this.svg.classList.add("stack");
  }

  // The panels that lie on one another, by their places.
  places() {
    const places = new Map();
    for (const panel of this.panels.filter((each) => !each.isScale)) {
      const key = [panel.frame.x, panel.frame.y].map(Math.round).join();
      places.set(key, [...(places.get(key) ?? []), panel]);
    }
    return [...places.values()];
  }

  // Draws all panels as wide as a phone shows legibly; false where they cannot be.
  squeeze() {
    const reached = this.panels.filter((panel) => !panel.isScale).map((panel) => panel.reach());
    this.uncopy();
    const [left, right] = [0, 1].map((side) => Math.max(...reached.map((each) => each[side])));
    const width = SQUEEZED - left - right;
    return width >= LEAST && this.panels.filter((panel) => !panel.isScale).every((panel) => {
      const fits = panel.squeeze(Math.min(width, panel.frame.width));
      panel.measure();
      return fits;
    });
  }

  // The box of a panel with its axes' names, which a panel that shares its axes gets from the one that has them.
  whole(group, stacked) {
    const [panel] = group;
    panel.labels.forEach((axis, index) => {
      if (!axis || axis.querySelector("use[href^='#L']")) return;
      const side = index ? "y" : "x"; // panels of a row share y, those of a column share x
      const other = stacked.map(([each]) => each).find((each) => Math.abs(each.frame[index ? "y" : "x"] - panel.frame[side]) < 1 && each.labels[index]?.querySelector("use[href^='#L']"));
      if (!other) return;
      const copy = other.labels[index].cloneNode(true);
      const down = index ? panel.frame.y - other.frame.y : panel.frame.y + panel.frame.height - other.frame.y - other.frame.height;
      copy.setAttribute("transform", `translate(${panel.frame.x - other.frame.x} ${down})`);
      copy.classList.add("copy");
      if (!index) for (const line of copy.querySelectorAll("[clip-path]")) line.remove(); // the panel has a grid as high as it is itself
      panel.group.prepend(copy); // its grid is behind the data
    });
    const parts = group.flatMap((each) => [each.frame, ...[...each.group.children].filter((node) => node.querySelector("use[href^='#L']") && !node.querySelector("[data-run]")).map(placed)]);
    const [x, y] = ["x", "y"].map((side) => Math.min(...parts.map((part) => part[side])));
    return { x, y, width: Math.max(...parts.map((part) => part.x + part.width)) - x, height: Math.max(...parts.map((part) => part.y + part.height)) - y };
  }

  legend(width) {
    let [x, y] = [4, 4];
    for (const { nodes } of this.entries) {
      const boxes = nodes.map((node) => node.getBBox());
      const left = Math.min(...boxes.map((box) => box.x));
      const size = Math.max(...boxes.map((box) => box.x + box.width)) - left;
      if (x > 4 && x + size > width) [x, y] = [4, y + 16];
      for (const node of nodes) node.setAttribute("transform", `translate(${x - left} ${y + 8 - (boxes.at(-1).y + boxes.at(-1).height / 2)})`);
      x += size + 12;
    }
    return this.entries.length ? y + 26 : 6;
  }

  uncopy() { for (const node of this.svg.querySelectorAll(".copy")) node.remove(); }

  unstack() {
    this.svg.setAttribute("viewBox", this.view);
    this.svg.classList.remove("stack");
    this.uncopy();
    for (const panel of this.panels) panel.restore();
    for (const node of this.svg.querySelectorAll(".panel, .legend > g")) node.removeAttribute("transform");
  }
}

const drawings = [...document.querySelectorAll(".drawing")].map((box) => new Drawing(box));
const arrange = () => { for (const drawing of drawings) { drawing.stack(); if (drawing.marks.length) drawing.show(); } };
narrow.addEventListener("change", arrange);
document.addEventListener("toggle", arrange, true); // a figure that is not shown has no size
arrange();

// A link into a closed topic opens it; all are open on paper.
function reveal() {
  const target = location.hash.length > 1 && !location.hash.includes("=") && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let each = target.querySelector(":scope > details.topic") ?? target; each; each = each.parentElement?.closest("details")) if (each.tagName === "DETAILS") each.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
const topics = [...document.querySelectorAll("section > details.topic")];
byId("contents").prepend(...topics.map((each) => element("a", { href: `#${each.parentNode.id}`, textContent: each.querySelector("h2").textContent })));
byId("unfold").addEventListener("click", () => {
  const open = topics.some((each) => !each.open);
  for (const each of topics) each.open = open;
});
let opened = [];
addEventListener("beforeprint", () => { opened = topics.filter((each) => !each.open); for (const each of opened) each.open = true; });
addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
byId("refresh")?.addEventListener("click", () => location.reload());

// Previews beside the closed topics, drawn when there is time and they come into view.
const seen = new IntersectionObserver((all) => {
  for (const { isIntersecting, target } of all) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    requestIdleCallback(() => target.append(shape("use", { href: `#${target.dataset.of}`, width: "100%", height: "100%" })));
  }
});
for (const each of document.querySelectorAll(".preview")) seen.observe(each);

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

// ---- figures: marks choose rows; a dragged box is chosen, and zoomed into; panels are stacked on a narrow screen

const SVG = "http://www.w3.org/2000/svg";
const narrow = matchMedia("(max-width: 40rem)");
const MOST = 12; // texts in panels that a narrow screen shows of a figure: what the others say, a touch tells
function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}
const inside = ({ x, y, width, height }, { x: left, y: top, width: wide, height: high }) =>
  x + width / 2 >= left && x + width / 2 <= left + wide && y + height / 2 >= top && y + height / 2 <= top + high;

// Ticks between two values: at 1, 2 and 5 of each decade of a logarithm, otherwise at round steps.
function ticks(low, high, scale) {
  if (scale === "log" && high / low > 5) {
    const found = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) {
      for (const times of high / low > 500 ? [1] : [1, 2, 5]) found.push(times * 10 ** decade);
    }
    return found.filter((value) => value >= low && value <= high);
  }
  const size = 10 ** Math.floor(Math.log10((high - low) / 4));
  const step = size * [1, 2, 5, 10].find((times) => (high - low) / (size * times) <= 6);
  return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, index) => (Math.ceil(low / step) + index) * step);
}

class Panel {
  constructor(group) {
    this.group = group;
    const [column, x, left, right, y, bottom, top] = group.dataset.panel.split(":");
    this.column = column;
    this.axes = [{ scale: x, ends: [Number(left), Number(right)] }, { scale: y, ends: [Number(bottom), Number(top)] }];
    this.frame = group.querySelector("path").getBBox(); // the background, which comes first
    this.labels = group.querySelectorAll(":scope > .axis");
  }

  get zoomable() { return this.axes.some(({ scale }) => scale !== "names"); }

  // What moves: data, which is clipped by the frame, and names beside it. The clip stays where it is.
  moved() {
    if (this.movable) return this.movable;
    const names = [...this.group.querySelectorAll(":scope > g:not(.axis)")].filter((each) => {
      const box = each.getBBox();
      const lettered = each.querySelector("use[href^='#L']") || !each.querySelector("[clip-path]");
      return lettered && box.width && box.height && box.height < 40 && !each.querySelector("[data-run]") && inside(box, this.frame);
    });
    const marks = [...this.group.querySelectorAll("[clip-path]")].filter((each) => !each.closest(".axis") && !names.some((name) => name.contains(each)));
    const nodes = new Set(marks.map((each) => {
      const node = each.closest("[data-run]") ?? each;
      const clip = shape("g", { "clip-path": each.getAttribute("clip-path") });
      if (!node.parentNode.matches("[clip-path]")) { node.before(clip); clip.append(node); }
      if (each !== node || each.tagName !== "g") each.removeAttribute("clip-path");
      return node;
    }));
    for (const each of names) nodes.add(each);
    this.movable = [...nodes].map((node) => ({ node, box: node.getBBox(), isName: names.includes(node) }));
    return this.movable;
  }

  zoom(box) {
    const { x, y, width, height } = this.frame;
    const [wide, high] = [this.axes[0].scale !== "names", this.axes[1].scale !== "names"];
    const [k, m] = [wide ? width / Math.max(box.width, 1) : 1, high ? height / Math.max(box.height, 1) : 1];
    const [left, top] = [wide ? box.x : x, high ? box.y : y];
    for (const { node, box: old, isName } of this.moved()) {
      const [cx, cy] = [old.x + old.width / 2, old.y + old.height / 2];
      const [tx, ty] = [x + (cx - left) * k, y + (cy - top) * m];
      const small = isName || (old.width < 30 && old.height < 30);
      node.setAttribute("transform", small ? `translate(${tx - cx} ${ty - cy})` : `matrix(${k} 0 0 ${m} ${x - left * k} ${y - top * m})`);
      for (const line of small ? [] : node.matches("path") ? [node] : node.querySelectorAll("path")) line.setAttribute("vector-effect", "non-scaling-stroke");
      const leads = isName && node.querySelector("path[style*='fill: none']"); // to a point that has moved away
      if (isName) node.style.display = leads || tx < x || tx > x + width || ty < y || ty > y + height ? "none" : "";
    }
    this.scale({ x: left, y: top, width: width / k, height: height / m });
  }

  // Axes of the part that is in view.
  scale(view) {
    const { x, y, width, height } = this.frame;
    this.drawn?.remove();
    this.drawn = shape("g", { "class": "zoomed", "font-size": 11, fill: "var(--ink)" });
    this.axes.forEach(({ scale, ends: [low, high] }, index) => {
      if (scale === "names") return;
      const value = (share) => (scale === "log" ? low * (high / low) ** share : low + (high - low) * share);
      const place = (at) => (scale === "log" ? Math.log(at / low) / Math.log(high / low) : (at - low) / (high - low));
      const [from, to] = index ? [(y + height - view.y - view.height) / height, (y + height - view.y) / height] : [(view.x - x) / width, (view.x + view.width - x) / width];
      for (const at of ticks(value(from), value(to), scale)) {
        const share = (place(at) - from) / (to - from);
        const [tx, ty] = index ? [x, y + height * (1 - share)] : [x + width * share, y + height];
        this.drawn.append(
          shape("path", { d: index ? `M${tx} ${ty}h${width}` : `M${tx} ${ty}v${-height}`, stroke: "var(--grid)" }),
          shape("text", index ? { x: tx - 5, y: ty + 4, "text-anchor": "end" } : { x: tx, y: ty + 15, "text-anchor": "middle" }, shown(Number(at.toPrecision(6)))));
      }
      for (const each of this.labels[index]?.querySelectorAll(":scope > g") ?? []) if (each.querySelector("path[clip-path], path[style*=grid]") || each.children.length > 1) each.style.display = "none";
    });
    this.group.querySelector("path").parentNode.after(this.drawn);
  }

  reset() {
    this.drawn?.remove();
    for (const { node } of this.movable ?? []) { node.removeAttribute("transform"); node.style.display = ""; }
    for (const each of this.group.querySelectorAll(".axis > g")) each.style.display = "";
  }
}

class Drawing {
  constructor(box) {
    Object.assign(this, { box, svg: box.querySelector("svg"), marks: [...box.querySelectorAll("[data-run]")], at: -1 });
    if (!this.svg) return;
    this.view = this.svg.getAttribute("viewBox");
    box.addEventListener("click", (event) => this.clicked(event));
    box.addEventListener("keydown", (event) => this.pressed(event));
    if (!this.marks.length) return;
    box.setAttribute("role", "application"); // its marks take the arrow keys
    this.live = element("span", { role: "status" });
    this.zoom = element("button", { type: "button", textContent: words.zoom, hidden: true });
    this.reset = element("button", { type: "button", textContent: words.reset, hidden: true });
    box.after(element("div", { className: "tools" }, this.zoom, this.reset, this.live));
    this.zoom.addEventListener("click", () => this.enlarge());
    this.reset.addEventListener("click", () => this.restore());
    this.svg.addEventListener("pointerdown", (event) => this.drag(event));
    watchers.push(() => this.show());
  }

  get panels() { return this.found ??= [...this.svg.querySelectorAll(".panel")].map((each) => new Panel(each)); }

  show() {
    let any = false;
    for (const mark of this.marks) any = mark.classList.toggle("on", chosen.has(mark.dataset.run)) || any;
    this.svg.classList.toggle("choosing", any);
    this.zoom.hidden = !any || this.svg.classList.contains("stack") || !this.svg.getBoundingClientRect().width || !this.panels.some((panel) => panel.zoomable);
  }

  clicked(event) {
    const mark = event.target.closest?.("[data-run]");
    if (mark) choose([mark.dataset.run], event.shiftKey || event.ctrlKey || event.metaKey);
    else if (!this.dragged) this.large((event.clientX - this.box.getBoundingClientRect().left) / this.box.clientWidth);
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
      if (this.at >= 0) choose([this.marks[this.at].dataset.run], true);
      else this.large(0.5);
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
      const [seen, held] = [box.getBoundingClientRect(), box.getBBox()];
      box.remove();
      this.dragged = true;
      this.held = held;
      choose([...new Set(this.marks.filter((mark) => inside(mark.getBoundingClientRect(), seen)).map((mark) => mark.dataset.run))], event.shiftKey);
      this.zoom.hidden = !this.panels.some((panel) => panel.zoomable);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  }

  enlarge() {
    for (const panel of this.panels.filter((each) => each.zoomable)) {
      const marks = this.marks.filter((mark) => mark.classList.contains("on") && panel.group.contains(mark)).map((mark) => mark.getBBox());
      if (this.held ? !inside(this.held, panel.frame) : !marks.length) continue;
      const [left, top] = ["x", "y"].map((side) => Math.min(...marks.map((mark) => mark[side])) - 12);
      const [right, bottom] = [["x", "width"], ["y", "height"]].map(([side, size]) => Math.max(...marks.map((mark) => mark[side] + mark[size])) + 12);
      panel.reset();
      panel.zoom(this.held ?? { x: left, y: top, width: right - left, height: bottom - top });
      this.reset.hidden = false;
    }
    this.held = null;
  }

  restore() {
    for (const panel of this.panels) panel.reset();
    this.reset.hidden = true;
    this.held = null;
  }

  // Fewer texts: values go first, all of them, since some alone would seem chosen; then names, spread over all.
  thin() {
    const notes = [...this.svg?.querySelectorAll(".text, .value") ?? []].filter((each) => !each.closest(".axis, .legend"));
    const kept = narrow.matches ? MOST : notes.length;
    const names = notes.length > kept ? notes.filter((each) => each.matches(".text")) : notes;
    const spare = names.filter((_, index) => names.length > kept && Math.floor((index + 1) * kept / names.length) === Math.floor(index * kept / names.length));
    for (const each of notes) {
      const leader = each.previousElementSibling;
      for (const drawn of leader?.matches(".leader") ? [leader, each] : [each]) drawn.classList.toggle("spare", !names.includes(each) || spare.includes(each));
    }
  }

  // Panels below one another, each with the names of its axes; the legend in lines as wide as they are.
  stack() {
    if (!this.svg?.getBoundingClientRect().width || this.svg.classList.contains("stack") === narrow.matches) return;
    const places = new Map();
    for (const panel of this.panels) {
      const key = [panel.frame.x, panel.frame.y].map(Math.round).join();
      places.set(key, [...(places.get(key) ?? []), panel]);
    }
    if (places.size < 2 || this.wide) return;
    if (!narrow.matches) return this.unstack();
    if (this.reset && !this.reset.hidden) this.restore();
    const stacked = [...places.values()];
    const boxes = stacked.map((group) => this.whole(group, stacked));
    const width = Math.max(...boxes.map((box) => box.width), 240) + 8;
    this.wide = width > 520; // panels that are wide themselves are read sideways
    if (this.wide) return this.unstack();
    let top = this.legend(width);
    stacked.forEach((group, index) => {
      for (const { group: node } of group) node.setAttribute("transform", `translate(${4 - boxes[index].x} ${top - boxes[index].y})`);
      top += boxes[index].height + 14;
    });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${top}`);
    this.svg.classList.add("stack");
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
      copy.setAttribute("transform", `translate(${panel.frame.x - other.frame.x} ${panel.frame.y - other.frame.y})`);
      copy.classList.add("copy");
      panel.group.prepend(copy); // its grid is behind the data
    });
    const parts = group.flatMap((each) => [each.frame, ...[...each.group.children].filter((node) => node.querySelector("use[href^='#L']") && !node.querySelector("[data-run]")).map((node) => {
      const box = node.getBBox();
      const moved = node.classList.contains("copy") ? node.transform.baseVal[0].matrix : { e: 0, f: 0 };
      return { x: box.x + moved.e, y: box.y + moved.f, width: box.width, height: box.height };
    })]);
    const [x, y] = ["x", "y"].map((side) => Math.min(...parts.map((part) => part[side])));
    return { x, y, width: Math.max(...parts.map((part) => part.x + part.width)) - x, height: Math.max(...parts.map((part) => part.y + part.height)) - y };
  }

  legend(width) {
    let [x, y, entry] = [4, 4, []];
    const entries = [...this.svg.querySelectorAll(".legend > g")].flatMap((node) => {
      entry.push(node);
      return node.querySelector("use[href^='#L']") ? [entry.splice(0)] : [];
    });
    for (const nodes of entries) {
      const boxes = nodes.map((node) => node.getBBox());
      const left = Math.min(...boxes.map((box) => box.x));
      const size = Math.max(...boxes.map((box) => box.x + box.width)) - left;
      if (x > 4 && x + size > width) [x, y] = [4, y + 16];
      for (const node of nodes) node.setAttribute("transform", `translate(${x - left} ${y + 8 - (boxes.at(-1).y + boxes.at(-1).height / 2)})`);
      x += size + 12;
    }
    return entries.length ? y + 26 : 6;
  }

  unstack() {
    this.svg.setAttribute("viewBox", this.view);
    this.svg.classList.remove("stack");
    for (const node of this.svg.querySelectorAll(".copy")) node.remove();
    for (const node of this.svg.querySelectorAll(".panel, .legend > g")) node.removeAttribute("transform");
  }
}

const drawings = [...document.querySelectorAll(".drawing")].map((box) => new Drawing(box));
const arrange = () => { for (const drawing of drawings) { drawing.thin(); drawing.stack(); if (drawing.marks.length) drawing.show(); } };
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
let opened = [];
addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details.topic:not([open])")]; for (const each of opened) each.open = true; });
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

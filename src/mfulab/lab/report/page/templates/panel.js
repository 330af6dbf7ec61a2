// ---- a panel of a drawing; on a narrow screen its shapes are squeezed, while letters and points keep their size

const SQUEEZED = 400; // units of a drawing that a phone shows legibly
const LEAST = 120; // units across in which marks are still told apart
const POINT = 16; // units: what is as high as wide, and no larger, is a mark of its own size

// The box of a node where its own transform puts it.
function placed(node) {
  const { x, y, width, height } = node.getBBox();
  const moved = node.transform.baseVal.consolidate()?.matrix ?? { e: 0, f: 0 };
  return { x: x + moved.e, y: y + moved.f, width, height };
}
const middle = (drawn) => {
  const { x, y, width, height } = placed(drawn);
  return { x: x + width / 2, y: y + height / 2 };
};
const meet = (one, other) =>
  one.x < other.x + other.width && other.x < one.x + one.width && one.y < other.y + other.height && other.y < one.y + one.height;

class Panel {
  constructor(group) {
    this.group = group;
    this.labels = group.querySelectorAll(":scope > .axis");
    this.before = []; // nodes, their attribute and its value as drawn
    this.measure();
  }

  measure() { this.frame = this.group.querySelector("path").getBBox(); } // the background, which comes first

  texts() {
    return [...this.group.querySelectorAll(".text, .value, .heading")].map((node) => ({ node, box: node.getBBox(), inAxis: Boolean(node.closest(".axis")) }));
  }

  // How far texts reach beyond the frame, to the left and to the right; titles may be moved.
  reach() {
    const right = this.frame.x + this.frame.width;
    const texts = this.texts().filter(({ node }) => !node.matches(".heading"));
    return [
      Math.max(0, ...texts.map(({ box }) => this.frame.x - box.x)),
      Math.max(0, ...texts.filter(({ box }) => box.x >= right).map(({ box }) => box.x + box.width - right)),
    ];
  }

  // A scale of colours, of which the numbers in cells need none on a narrow screen.
  get isScale() { return this.frame.width < 30 && Boolean(this.group.querySelector("image")); }

  // Draws the frame `width` units wide; false where names, or most values, find no place.
  squeeze(width) {
    const { x: left, width: wide } = this.frame;
    const texts = this.texts();
    const marks = [...this.group.querySelectorAll("[data-run]")].map((mark) => mark.getBBox());
    const to = (x) => {
      if (x < left) return x;
      if (x > left + wide) return x - wide + width;
      return left + (x - left) * width / wide;
    };
    this.shapes(to);
    const [first, last] = [Math.min(left, ...texts.map(({ box }) => box.x)), to(left + wide) + this.reach()[1]];
    for (const text of texts) this.move(text, to, first, last);
    const bars = marks.map(({ x, y, width: across, height }) => ({ x: to(x), y, width: to(x + across) - to(x), height }));
    return this.thin(texts, bars);
  }

  set(node, name, value) {
    this.before.push([node, name, node.getAttribute(name)]);
    node.setAttribute(name, value);
  }

  shapes(to) {
    const drawn = [...this.group.querySelectorAll("path, circle, use, image")].filter((node) => !node.closest(".text, .value, .heading"));
    const boxes = drawn.map((node) => node.closest("defs") ? null : node.getBBox());
    drawn.forEach((node, index) => this.shape(node, boxes[index], to));
    const clips = new Set(drawn.map((node) => node.closest("[clip-path]")?.getAttribute("clip-path").slice(5, -1)));
    for (const rect of [...clips].map((id) => id && document.getElementById(id)?.querySelector("rect")).filter(Boolean)) {
      const [x, width] = [rect.x.baseVal.value, rect.width.baseVal.value];
      this.set(rect, "width", to(x + width) - to(x));
    }
  }

  shape(node, box, to) {
    const places = node.tagName === "path" ? node.getAttribute("d").match(/-?[\d.]+ -?[\d.]+/g) : null;
    if (places) {
      if (!box && places.every((place) => Math.abs(parseFloat(place)) <= POINT)) return; // a mark, which others place
      const isPoint = box && box.width <= POINT && Math.abs(box.width - box.height) < 0.5;
      const center = isPoint ? box.x + box.width / 2 : 0;
      const moved = (x) => (isPoint ? x + to(center) - center : to(x));
      this.set(node, "d", node.getAttribute("d").replace(/(-?[\d.]+) (-?[\d.]+)/g, (_, x, y) => `${moved(Number(x))} ${y}`));
      return;
    }
    const name = node.tagName === "circle" ? "cx" : "x";
    const [x, width] = [Number(node.getAttribute(name)), node.tagName === "image" ? Number(node.getAttribute("width")) : 0];
    if (width) this.set(node, "width", to(x + width) - to(x));
    if (node.hasAttribute(name)) this.set(node, name, to(x));
  }

  // Moves a text with what it stands at: with its left end beside a mark, else with its middle.
  move(text, to, first, last) {
    const { node, box } = text;
    const share = node.matches(".start, .heading") ? 0 : node.matches(".end") ? 1 : 0.5;
    const anchor = box.x + share * box.width;
    const wanted = box.x + to(anchor) - anchor;
    const x = Math.max(first, Math.min(wanted, last - box.width));
    this.set(node, "transform", `translate(${x - box.x} 0)`);
    text.box = { x, y: box.y, width: box.width, height: box.height };
    text.isCut = wanted - x > 2 && node.matches(".start"); // it would lie on what it stands behind
  }

  // Hides what lies on another text, or is wider than the bar that it stands in.
  thin(texts, bars) {
    const kept = [];
    const lost = { text: 0, value: 0 };
    const inside = texts.filter(({ node, inAxis }) => !inAxis && !node.matches(".heading"));
    for (const text of [...texts.filter(({ inAxis }) => inAxis), ...inside.sort((one, other) => one.node.matches(".value") - other.node.matches(".value"))]) {
      const { box, node } = text;
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
      const bar = node.matches(".start, .end") ? null : bars.find((each) => each.width > 0 && each.x <= x && x <= each.x + each.width && each.y <= y && y <= each.y + each.height);
      const isHidden = text.isCut || kept.some((other) => meet(other, box)) || Boolean(bar && !text.inAxis && bar.width < box.width);
      if (!isHidden) kept.push({ ...box, width: box.width + 2 });
      if (isHidden && !text.inAxis) lost[node.matches(".value") ? "value" : "text"] += 1;
      if (isHidden) this.hide(node);
    }
    return !lost.text && 2 * lost.value <= inside.length;
  }

  hide(node) {
    node.classList.add("spare");
    if (node.previousElementSibling?.matches(".leader")) node.previousElementSibling.classList.add("spare");
  }

  restore() {
    for (const [node, name, value] of this.before.splice(0).reverse()) if (value === null) node.removeAttribute(name); else node.setAttribute(name, value);
    for (const node of this.group.querySelectorAll(".spare")) node.classList.remove("spare");
    this.measure();
  }
}

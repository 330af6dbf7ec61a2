// The page's behaviour: theme, copying commands, and a table that sorts, filters, exports and opens runs. No library, no network.
"use strict";
const byId = (id) => document.getElementById(id);
const { words, groups, colors } = JSON.parse(byId("words").textContent);
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

// What holds a number and its unit together in a line is no letter of the text.
document.addEventListener("copy", (event) => {
  const text = String(getSelection());
  if (!/[\u2060\u00a0]/.test(text)) return;
  event.clipboardData.setData("text/plain", text.replaceAll("\u2060", "").replaceAll("\u00a0", " "));
  event.preventDefault();
});

function save(name, parts, type) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// A spreadsheet runs a text that begins like a formula: one quote keeps it a text.
function cell(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" && /^'*[=+\-@\t\r\n＝＋－＠﹦﹢﹣﹫]/.test(value) ? `'${value}` : String(value);
}

function csv(lines) {
  const quote = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return lines.map((line) => line.map((value) => quote(cell(value))).join(",")).join("\n") + "\n";
}

// What a spreadsheet takes from the clipboard: a tab or line end within a cell would begin another.
function pasted(lines) {
  return lines.map((line) => line.map((value) => cell(value).replace(/[\t\r\n]+/g, " ")).join("\t")).join("\n");
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

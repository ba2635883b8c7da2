"use strict";
// Reads the data, and has what all parts of the page share: elements, figures, tips, tabs, keys.

const page = { data: null, panels: [], current: null, ready: false, started: performance.now() };
window.ingotPage = page; // for whoever looks at the page from outside, such as its tests

// -- the data: base64 of gzipped JSON, long texts once --------------------------------------------

async function readData() {
  const packed = atob(document.getElementById("data").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const unzipped = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const [body, texts] = JSON.parse(await new Response(unzipped).text());
  const revive = (thing) => {
    if (Array.isArray(thing)) {
      for (let k = 0; k < thing.length; k++) thing[k] = revive(thing[k]);
    } else if (thing && typeof thing === "object") {
      if (thing.$ !== undefined) return texts[thing.$];
      for (const name in thing) thing[name] = revive(thing[name]);
    }
    return thing;
  };
  return revive(body);
}

// -- elements -------------------------------------------------------------------------------------

// An element: h("td", {class: "number", onclick: f}, "text", another, ...). Texts are never HTML.
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  return add(element, ...children);
}

// Adds elements and texts, in lists or not; what is null or false is nothing.
function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

function fill(element, ...children) {
  element.replaceChildren();
  return add(element, ...children);
}

function rowsTable(heads, rows, attributes) {
  const head =
    heads &&
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        heads.map((text) => h("th", null, text)),
      ),
    );
  const cells = (row) =>
    row.map((cell) => (cell instanceof Node && cell.tagName === "TD" ? cell : h("td", null, cell)));
  return h(
    "table",
    { class: "plain", ...attributes },
    head,
    h(
      "tbody",
      null,
      rows.map((row) => h("tr", null, cells(row))),
    ),
  );
}

const numberCell = (text, value) => h("td", { class: "number", "data-value": value }, text);

// -- figures --------------------------------------------------------------------------------------

function sizeText(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let size = bytes;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (size < 1000)
      return (unit === "B" || size >= 100 ? size.toFixed(0) : size.toPrecision(3)) + " " + unit;
    size /= 1024;
  }
  return size.toPrecision(3) + " GiB";
}

function timeText(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0";
  if (seconds < 1e-3) return (seconds * 1e6).toPrecision(3) + " µs";
  if (seconds < 1) return (seconds * 1e3).toPrecision(3) + " ms";
  return seconds.toPrecision(3) + " s";
}

function percent(share) {
  if (share === null || share === undefined || !isFinite(share)) return "–";
  return (share * 100).toFixed(share < 0.1 ? 1 : 0) + "%";
}

const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const sum = (numbers) => numbers.reduce((total, number) => total + (number || 0), 0);

// "/a/b/c.py:12" with the folders that all files of the user's share left out.
function placeText(where) {
  if (!where) return "";
  const parts = where.split("/");
  return parts.length > 2 ? parts.slice(-2).join("/") : where;
}

// A text with each "/a/b/c.py:12" in it shortened in the same way.
const shortPlaces = (text) =>
  text.replace(/(^|[\s(])(\/[^()\s]*:\d+)/g, (all, before, where) => before + placeText(where));

const shortOp = (op) => (op.includes(".") ? op.split(".")[1] : op);

function opsText(ops) {
  const counts = new Map();
  for (const op of ops) counts.set(shortOp(op), (counts.get(shortOp(op)) || 0) + 1);
  return [...counts].map(([op, count]) => (count === 1 ? op : `${op} ×${count}`)).join(", ");
}

const codeAt = (where) => page.data.code[where] || "";

// The share of the machine's limit: of its bandwidth, or of its products if those take longer.
function shareOfLimit(bytes, flops, seconds) {
  const limits = page.data.limits;
  if (!limits || !seconds || bytes === null || bytes === undefined) return null;
  const memory = bytes / limits.bytes_per_second;
  const products = flops ? flops / limits.flops_per_second : 0;
  const least = Math.max(memory, products);
  const known = flops !== null && flops !== undefined;
  return { share: least / seconds, by: products > memory ? "products" : "memory", least, known };
}

function limitText(bytes, flops, seconds) {
  const limit = shareOfLimit(bytes, flops, seconds);
  return limit ? `${limit.known ? "" : "at least "}${percent(limit.share)} (${limit.by})` : "–";
}

// A color of its own for each name, the same in each part of the page.
function colorOf(name, light) {
  let hash = 0;
  for (let k = 0; k < name.length; k++) hash = (hash * 31 + name.charCodeAt(k)) | 0;
  const hue = ((hash >>> 0) % 3600) / 10;
  return `hsl(${hue} ${isDark() ? "38%" : "52%"} ${light || (isDark() ? "36%" : "74%")})`;
}

// -- themes ---------------------------------------------------------------------------------------

const darkQuery = matchMedia("(prefers-color-scheme: dark)");
const isDark = () =>
  (document.documentElement.dataset.theme || (darkQuery.matches ? "dark" : "light")) === "dark";
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function switchTheme() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("ingot-theme", document.documentElement.dataset.theme);
  } catch {
    /* a file has none */
  }
  redraw();
}

function redraw() {
  for (const panel of page.panels) if (panel.redraw) panel.redraw();
}

// -- tips -----------------------------------------------------------------------------------------

function showTip(x, y, title, rows) {
  const tip = document.getElementById("tip");
  const shown = rows.filter((row) => row[1] !== "" && row[1] !== null && row[1] !== undefined);
  tip.replaceChildren(
    h("b", null, title),
    h(
      "table",
      null,
      shown.map(([name, text]) => h("tr", null, h("td", null, name), h("td", null, text))),
    ),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top =
    (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
}

const hideTip = () => {
  document.getElementById("tip").hidden = true;
};

// -- canvases -------------------------------------------------------------------------------------

// The context of a canvas as wide as its place, sharp on every screen.
function sized(canvas, height) {
  const ratio = window.devicePixelRatio || 1,
    width = canvas.clientWidth || 800;
  canvas.style.height = height + "px";
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// Text that is cut to a width; nothing where there is no room.
function fitted(context, text, x, y, width) {
  const room = Math.floor((width - 6) / 6.2);
  if (room < 2) return;
  context.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, x + 3, y);
}

// Round numbers that divide a range in some six parts.
function ticks(from, to, count) {
  const raw = (to - from) / (count || 6),
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

// -- tabs and keys --------------------------------------------------------------------------------

// A part of the page: {id, title, count, draw(element)}; `draw` runs when it is first shown.
function addPanel(panel) {
  panel.number = page.panels.length + 1;
  panel.tab = h(
    "button",
    {
      role: "tab",
      id: "tab-" + panel.id,
      "aria-controls": panel.id,
      "aria-selected": "false",
      tabindex: "-1",
      title: "key " + panel.number,
      onclick: () => openPanel(panel.id),
    },
    panel.title,
    panel.count !== undefined && h("span", { class: "count" }, " " + panel.count),
  );
  panel.element = h("div", {
    role: "tabpanel",
    id: panel.id,
    "aria-labelledby": "tab-" + panel.id,
    tabindex: "-1",
    hidden: true,
  });
  page.panels.push(panel);
}

function openPanel(id) {
  const panel = page.panels.find((one) => one.id === id) || page.panels[0];
  hideTip();
  for (const one of page.panels) {
    one.element.hidden = one !== panel;
    one.tab.setAttribute("aria-selected", String(one === panel));
    one.tab.tabIndex = one === panel ? 0 : -1;
  }
  page.current = panel;
  if (!panel.drawn) {
    panel.drawn = true;
    panel.draw(panel.element);
  } else if (panel.redraw) panel.redraw();
  return panel;
}

const KEYS = [
  ["1 to 7", "the parts of the page"],
  ["← →", "in the tabs: the one beside; in a timeline: the event before and behind"],
  ["↑ ↓ PgUp PgDn Home End", "in tables and trees: rows"],
  ["→ ← Enter", "in trees: open, close, choose"],
  ["+ − 0 a d", "in a timeline: closer, farther, all of it, left, right"],
  ["/", "to the search of a part"],
  ["t", "dark or light"],
  ["Esc", "close what is open"],
  ["?", "these keys"],
];

function showKeys() {
  const dialog = document.getElementById("keys");
  dialog.replaceChildren(
    h("h2", null, "Keys"),
    rowsTable(
      null,
      KEYS.map(([keys, text]) => [h("kbd", null, keys), text]),
    ),
    h("form", { method: "dialog" }, h("button", null, "close")),
  );
  dialog.showModal();
}

function onKey(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    hideTip();
    if (typing) event.target.blur();
    return;
  }
  if (typing) return;
  if (event.target.getAttribute && event.target.getAttribute("role") === "tab") {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      const count = page.panels.length,
        next = page.panels[(page.panels.indexOf(page.current) + step + count) % count];
      openPanel(next.id).tab.focus();
      event.preventDefault();
    }
  }
  if (/^[1-9]$/.test(event.key) && page.panels[event.key - 1])
    openPanel(page.panels[event.key - 1].id).tab.focus();
  else if (event.key === "t") switchTheme();
  else if (event.key === "?") showKeys();
  else if (event.key === "/") {
    const search = page.current.element.querySelector("input[type=search]");
    if (search) {
      search.focus();
      event.preventDefault();
    }
  }
}

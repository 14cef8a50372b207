"use strict";
// Texts of records become text nodes only; nothing is parsed as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const { labels, columns, cards } = data;
const count = columns.failed.length;
const digits = Object.fromEntries(data.metrics.map((metric) => [metric.name, metric.digits]));
const PAGE = 100; // rows that the table of all records adds at a time
const NEAR = "600px"; // distance from the window at which pictures are decoded

const label = (name, row) => labels[name][columns[name][row]];
const written = (value, metric) => (value === null ? "--" : value.toFixed(digits[metric] ?? 3));

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function choice(place, name, options, onchange) {
  const select = make("select", { onchange });
  for (const [value, text] of options) select.append(make("option", { value }, text));
  document.getElementById(place).append(make("label", {}, name, select));
  return select;
}

const same = (names) => names.map((name) => [name, name]);

// Numbers by value, texts in natural order; missing values always last.
function compare(a, b, down) {
  const missing = (value) => value === null || value === "--" || value === "";
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
  return down ? -order : order;
}

function mark(heads, chosen, down) {
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  chosen.setAttribute("aria-sort", down ? "descending" : "ascending");
}

// ---- tables -----------------------------------------------------------------------------------------------------

function key(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = text === "" ? NaN : Number(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => {
    head.firstElementChild.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      mark(heads, head, down);
      for (const body of table.tBodies) {
        const rows = [...body.rows].filter((row) => !row.classList.contains("block"));
        body.append(...rows.sort((a, b) => compare(key(a, column), key(b, column), down)));
      }
    });
  });
}

// ---- heat map ---------------------------------------------------------------------------------------------------

const maps = [...document.querySelectorAll(".map")];
if (maps.length) {
  const options = maps.map((map) => [map.dataset.metric, map.dataset.head]);
  const metric = choice("heat-controls", "metric", options, () => {
    for (const map of maps) map.hidden = map.dataset.metric !== metric.value;
  });
}
for (const button of document.querySelectorAll(".goto")) {
  button.addEventListener("click", () => showImages(button.dataset.method, button.dataset.subset));
}

// ---- distributions ----------------------------------------------------------------------------------------------

const spreadMetric = choice("spread-controls", "metric", data.metrics.map((m) => [m.name, m.head]), drawSpread);
const spreadSubset = choice("spread-controls", "subset", same(data.subsets), drawSpread);

function drawSpread() {
  const [metric, subset] = [spreadMetric.value, spreadSubset.value];
  const place = document.getElementById("spread");
  const found = data.spreads.filter((s) => s.metric === metric && s.subset === subset);
  found.sort((a, b) => data.methods.indexOf(a.method) - data.methods.indexOf(b.method));
  const points = new Map(found.map((spread) => [spread.method, []]));
  for (let row = 0; row < count; row++) {
    const value = columns[metric][row];
    if (value !== null && label("dataset", row) === subset && label("prior", row) === data.prior) {
      points.get(label("method", row))?.push(value);
    }
  }
  const all = [...points.values()].flat();
  if (!all.length) return place.replaceChildren(make("p", { class: "quiet" }, "No record of this subset has a score."));
  // Errors span decades; deltas, and errors of zero, cannot be on a logarithmic axis.
  const [least, most] = all.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [all[0], all[0]]);
  const log = least > 0 && !metric.startsWith("delta");
  const scale = log ? Math.log10 : (value) => value;
  const pad = (scale(most) - scale(least)) * 0.03 || Math.abs(scale(most)) * 0.1 || 0.1;
  const [low, high] = [scale(least) - pad, scale(most) + pad];
  const width = Math.max(320, Math.min(1168, place.clientWidth || 1168));
  const left = Math.min(160, width * 0.36), numbers = 64, line = 34, top = 6;
  const right = width - numbers, bottom = top + line * found.length;
  const x = (value) => left + ((scale(value) - low) / (high - low)) * (right - left);
  const name = data.metrics.find((m) => m.name === metric).head;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${bottom + 44}`, role: "img", "aria-label": `${name} on ${subset}` });
  let last = -Infinity;
  for (const value of axisTicks(low, high, log)) {
    const at = x(value);
    svg.append(draw("line", { class: "axis", x1: at, x2: at, y1: top, y2: bottom }));
    if (at - last < 44) continue;
    svg.append(draw("text", { class: "axis-text", x: at, y: bottom + 17, "text-anchor": "middle" }, short(value)));
    last = at;
  }
  svg.append(draw("text", { class: "axis-text", x: (left + right) / 2, y: bottom + 37, "text-anchor": "middle" }, name));
  const [p7, p16, , p50, , p84, p93] = data.percentiles.map((_, i) => i);
  found.forEach((spread, i) => {
    const y = top + line * (i + 0.5);
    const value = spread.values;
    const ticks = points.get(spread.method).map((v) => `M${x(v).toFixed(1)} ${y + 6}v8`).join("");
    svg.append(
      draw("text", { x: left - 12, y: y + 4, "text-anchor": "end" }, fitted(spread.method, left - 14)),
      draw("path", { class: "ticks", d: ticks }),
      draw("line", { class: "whisker", x1: x(value[p7]), x2: x(value[p93]), y1: y - 2, y2: y - 2 }),
      draw("rect", { class: "box", x: x(value[p16]), y: y - 7, width: Math.max(1, x(value[p84]) - x(value[p16])), height: 10 }),
      draw("circle", { class: "median", cx: x(value[p50]), cy: y - 2, r: 5 }),
      draw("text", { x: width, y: y + 4, "text-anchor": "end" }, written(value[p50], metric)),
    );
  });
  place.replaceChildren(svg);
}

function fitted(text, room) {
  const letters = Math.floor(room / 7);
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
}

const short = (value) => (value >= 1e-4 ? String(Number(value.toPrecision(3))) : value.toExponential(0));

function axisTicks(low, high, log) {
  if (!log || high - low < 0.4) {
    const [from, to] = log ? [10 ** low, 10 ** high] : [low, high];
    const rough = 10 ** Math.floor(Math.log10((to - from) / 4));
    const step = [1, 2, 5, 10].map((n) => n * rough).find((n) => (to - from) / n <= 6);
    const first = Math.ceil(from / step);
    return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) => (first + i) * step);
  }
  const found = [];
  for (let decade = Math.floor(low); decade <= high; decade++) {
    for (const step of [1, 2, 5]) {
      const at = decade + Math.log10(step);
      if (at >= low && at <= high) found.push(step * 10 ** decade);
    }
  }
  return found;
}

// ---- pictures ---------------------------------------------------------------------------------------------------

const uri = (picture) => document.getElementById(`p${picture}`).textContent;
const title = (row) => `${label("dataset", row)}: ${label("image", row)}, ${label("case", row)}`;

function scaleBar(bar) {
  if (!bar) return "";
  const [scheme, from, to] = bar;
  return make("span", { class: "scale" }, from, make("span", { class: `bar ${scheme}` }), to);
}

// A picture becomes an element only when its card comes near the window.
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    watcher.unobserve(entry.target);
    for (const wait of entry.target.querySelectorAll(".wait")) {
      const [row, tile] = [entry.target.dataset.row, wait.dataset.tile];
      wait.replaceWith(make("img", { src: uri(cards[row][tile].picture), alt: "", decoding: "async" }));
    }
  }
}, { rootMargin: NEAR });

function card(row) {
  const scores = data.metrics.filter((m) => ["absrel", "mae", "nmed"].includes(m.name));
  const line = make("p", {}, make("b", {}, `${label("image", row)}, ${label("case", row)}`));
  for (const metric of scores) {
    const value = columns[metric.name][row];
    if (value !== null) line.append(make("span", { class: "quiet" }, `${metric.head} ${written(value, metric.name)}`));
  }
  const element = make("article", { class: "card", "data-row": row }, line);
  if (!cards[row]) {
    const reason = data.absent[row] ?? "this record was not selected";
    element.append(make("p", { class: "note" }, `No pictures: ${reason}`));
    return element;
  }
  const tiles = cards[row].map((tile, i) =>
    make("button", { type: "button", "aria-label": `${tile.title}, enlarge`, onclick: () => zoom(row, i) },
      make("span", { class: "wait", "data-tile": i }),
      make("span", { class: "caption" }, tile.title, scaleBar(tile.bar))));
  element.append(make("div", { class: "tiles" }, ...tiles));
  watcher.observe(element);
  return element;
}

const methodsShown = data.methods.filter((name) => data.gallery.some((entry) => entry.method === name));
const galleryMethod = choice("gallery-controls", "method", same(methodsShown), drawGallery);
const gallerySubset = choice("gallery-controls", "subset", same(data.subsets), drawGallery);
galleryMethod.value = ["Ours (best)", "Ours"].find((name) => methodsShown.includes(name)) ?? methodsShown[0];

function drawGallery() {
  const place = document.getElementById("gallery");
  const found = data.gallery.find((e) => e.method === galleryMethod.value && e.subset === gallerySubset.value);
  if (!found) return place.replaceChildren(make("p", { class: "quiet" }, "This method has no pictures on this subset."));
  const parts = [];
  for (const [name, rows] of [["Worst", found.worst], ["Best", found.best]]) {
    if (rows.length) parts.push(make("h3", {}, `${name} of ${found.method} on ${found.subset}`), ...rows.map(card));
  }
  place.replaceChildren(...parts);
}

function showImages(method, subset) {
  if (data.gallery.some((entry) => entry.method === method && entry.subset === subset)) {
    [galleryMethod.value, gallerySubset.value] = [method, subset];
    drawGallery();
    document.getElementById("images").scrollIntoView();
    galleryMethod.focus({ preventScroll: true });
  } else {
    if (recordFilters.method) recordFilters.method.value = method;
    if (recordFilters.dataset) recordFilters.dataset.value = subset;
    showRecords();
    document.getElementById("records").scrollIntoView();
  }
}

// ---- enlarged picture ---------------------------------------------------------------------------------------------------

const dialog = document.getElementById("zoom");
let shown = [0, 0];

function zoom(row, tile) {
  const own = cards[row];
  tile = (tile + own.length) % own.length;
  shown = [row, tile];
  document.getElementById("zoom-title").textContent = `${label("method", row)} on ${title(row)}`;
  const image = document.getElementById("zoom-image");
  image.src = uri(own[tile].picture);
  image.alt = own[tile].title;
  document.getElementById("zoom-caption").replaceChildren(scaleBar(own[tile].bar));
  document.getElementById("zoom-tabs").replaceChildren(...own.map((other, i) =>
    make("button", { type: "button", "aria-pressed": String(i === tile), onclick: () => zoom(row, i) }, other.title)));
  if (!dialog.open) dialog.showModal();
}

document.getElementById("zoom-close").addEventListener("click", () => dialog.close());
document.getElementById("zoom-back").addEventListener("click", () => zoom(shown[0], shown[1] - 1));
document.getElementById("zoom-next").addEventListener("click", () => zoom(shown[0], shown[1] + 1));
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
dialog.addEventListener("close", () => document.getElementById("zoom-image").removeAttribute("src"));
dialog.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) zoom(shown[0], shown[1] + step);
});

// ---- all records ------------------------------------------------------------------------------------------------

const several = ["dataset", "case", "prior", "method"].filter((name) => labels[name].length > 1);
const texts = ["image", ...several]; // a column with one label has no information
const heads = { image: "image", dataset: "subset", case: "case", prior: "prior", method: "method", seconds: "seconds" };
const fields = [...texts, ...data.metrics.map((metric) => metric.name), "seconds"];
const value = (name, row) => (texts.includes(name) ? label(name, row) : columns[name][row]);
const recordFilters = {};
for (const name of several) {
  recordFilters[name] = choice("record-controls", heads[name], [["", "all"], ...same(labels[name])], () => showRecords());
}
recordFilters.status = choice("record-controls", "status", [["", "all"], ["0", "scored"], ["1", "failed"]], () => showRecords());
const search = make("input", { type: "search", oninput: () => showRecords() });
document.getElementById("record-controls").append(make("label", {}, "image contains", search));
const recordTable = document.querySelector("table.records");
const recordBody = recordTable.tBodies[0];
let order = { field: null, down: false };
let rows = [];

const recordHeads = fields.map((field) => {
  const text = heads[field] ?? data.metrics.find((metric) => metric.name === field).head;
  const head = make("th", { scope: "col", class: texts.includes(field) && "text" }, make("button", { type: "button" }, text));
  head.firstElementChild.addEventListener("click", () => {
    order = { field, down: order.field === field && !order.down };
    mark(recordHeads, head, order.down);
    showRecords();
  });
  return head;
});
recordTable.tHead.append(make("tr", {}, ...recordHeads));

function showRecords() {
  const wanted = search.value.toLowerCase();
  rows = [];
  for (let row = 0; row < count; row++) {
    const kept = several.every((name) => !recordFilters[name].value || label(name, row) === recordFilters[name].value);
    const status = recordFilters.status.value;
    if (kept && (!status || columns.failed[row] === Number(status)) && label("image", row).toLowerCase().includes(wanted)) rows.push(row);
  }
  if (order.field) {
    const values = new Map(rows.map((row) => [row, value(order.field, row)]));
    rows.sort((a, b) => compare(values.get(a), values.get(b), order.down));
  }
  recordBody.replaceChildren();
  moreRecords();
}

function moreRecords() {
  const from = recordBody.rows.length;
  for (const row of rows.slice(from, from + PAGE)) {
    const name = cards[row]
      ? make("button", { type: "button", class: "open", onclick: () => zoom(row, 0) }, label("image", row))
      : label("image", row);
    const cells = fields.slice(1).map((field) => {
      const found = value(field, row);
      return texts.includes(field) ? make("td", { class: "text" }, found) : make("td", {}, written(found, field));
    });
    const failed = columns.failed[row] === 1;
    const attributes = failed ? { class: "failed", title: label("reason", row) } : {};
    recordBody.append(make("tr", attributes, make("th", { scope: "row" }, name), ...cells));
  }
  const shownNow = recordBody.rows.length;
  document.getElementById("record-count").textContent = `${shownNow} of ${rows.length} records shown`;
  document.getElementById("record-more").hidden = shownNow >= rows.length;
}

document.getElementById("record-more").addEventListener("click", moreRecords);

drawSpread();
drawGallery();
showRecords();
let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(drawSpread, 150);
});

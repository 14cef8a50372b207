// Small charts as SVG: points, lines and bands on two linear axes.

const NAMESPACE = 'http://www.w3.org/2000/svg';
const WIDTH = 400, HEIGHT = 250, LEFT = 56, RIGHT = 10, TOP = 8, BOTTOM = 36;
export const COLOURS = { adaptive: '#e06c1f', disparity: '#2a7fb8', 'log depth': '#7a68b3', depth: '#3a9a6e' };

function svg(tag, attributes = {}, text = '') {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

function ends(values, spread = [0, 1]) {
  const known = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (!known.length) return [0, 1];
  const at = (share) => known[Math.round(share * (known.length - 1))];
  const [low, high] = [at(spread[0]), at(spread[1])];
  const room = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - room, high + room];
}

function ticks([low, high]) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
  return found;
}

const short = (value) => String(Number(value.toPrecision(3)));

/**
 * Draw into `figure`: { caption, x: {label, domain?}, y: {label, domain?}, series: [...], marks: [...], zero?, pick? }.
 * A series is {kind: 'dots' | 'line' | 'band', x, y (or low, high), colour, label}; null in a line is a gap.
 */
export function chart(figure, { caption, x, y, series, marks = [], zero = false, pick = null }) {
  const xs = x.domain || ends(series.flatMap((s) => s.x));
  const ys = y.domain || ends(series.flatMap((s) => (s.kind === 'band' ? [...s.low, ...s.high] : s.y)));
  const px = (value) => LEFT + ((value - xs[0]) / (xs[1] - xs[0])) * (WIDTH - LEFT - RIGHT);
  const py = (value) => HEIGHT - BOTTOM - ((value - ys[0]) / (ys[1] - ys[0])) * (HEIGHT - TOP - BOTTOM);
  const inside = (a, b) => Number.isFinite(a) && Number.isFinite(b) && a >= xs[0] && a <= xs[1] && b >= ys[0] && b <= ys[1];
  const made = svg('svg', { class: 'chart', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': caption });
  for (const tick of ticks(xs)) {
    made.append(svg('line', { class: 'axis', x1: px(tick), x2: px(tick), y1: TOP, y2: HEIGHT - BOTTOM }));
    made.append(svg('text', { x: px(tick), y: HEIGHT - BOTTOM + 14, 'text-anchor': 'middle' }, short(tick)));
  }
  for (const tick of ticks(ys)) {
    made.append(svg('line', { class: 'axis', x1: LEFT, x2: WIDTH - RIGHT, y1: py(tick), y2: py(tick) }));
    made.append(svg('text', { x: LEFT - 6, y: py(tick) + 4, 'text-anchor': 'end' }, short(tick)));
  }
  made.append(svg('text', { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, 'text-anchor': 'middle' }, x.label));
  made.append(svg('text', { transform: `translate(11 ${(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)`, 'text-anchor': 'middle' }, y.label));
  if (zero && ys[0] < 0 && ys[1] > 0) made.append(svg('line', { class: 'zero', x1: LEFT, x2: WIDTH - RIGHT, y1: py(0), y2: py(0) }));
  for (const one of series) {
    const colour = one.colour || 'var(--accent)';
    if (one.kind === 'dots') {
      let path = '';
      one.x.forEach((value, i) => { if (inside(value, one.y[i])) path += `M${px(value).toFixed(1)} ${py(one.y[i]).toFixed(1)}h0`; });
      made.append(svg('path', { d: path, stroke: colour, 'stroke-width': 3.2, 'stroke-linecap': 'round', opacity: 0.4 }));
    } else if (one.kind === 'line') {
      let path = '', pen = false;
      one.x.forEach((value, i) => {
        const on = inside(value, one.y[i]);
        if (on) path += `${pen ? 'L' : 'M'}${px(value).toFixed(1)} ${py(one.y[i]).toFixed(1)}`;
        pen = on;
      });
      made.append(svg('path', { class: 'curve', d: path, stroke: colour, ...(one.dashed ? { 'stroke-dasharray': '5 4' } : {}) }));
    } else {
      const clip = (value) => Math.min(ys[1], Math.max(ys[0], value));
      const there = one.x.map((value, i) => `${px(value).toFixed(1)} ${py(clip(one.high[i])).toFixed(1)}`);
      const back = one.x.map((value, i) => `${px(value).toFixed(1)} ${py(clip(one.low[i])).toFixed(1)}`).reverse();
      if (there.length) made.append(svg('path', { class: 'band', d: `M${[...there, ...back].join('L')}Z`, fill: colour }));
    }
  }
  for (const mark of marks) {
    if (mark.at < xs[0] || mark.at > xs[1]) continue;
    made.append(svg('line', { class: 'mark', x1: px(mark.at), x2: px(mark.at), y1: TOP, y2: HEIGHT - BOTTOM, ...(mark.dashed ? { 'stroke-dasharray': '4 4' } : {}) }));
    const right = px(mark.at) > WIDTH - 90;
    made.append(svg('text', { x: px(mark.at) + (right ? -4 : 4), y: TOP + 11 + (mark.row || 0) * 13, 'text-anchor': right ? 'end' : 'start' }, mark.label));
  }
  const named = series.filter((one) => one.label);
  const note = document.createElement('figcaption');
  note.append(caption);
  for (const one of named) {
    const key = document.createElement('span');
    key.textContent = `  ● ${one.label}`;
    key.style.color = one.colour || 'var(--accent)';
    note.append(key);
  }
  if (pick) {
    made.style.cursor = 'crosshair';
    made.addEventListener('click', (event) => {
      const box = made.getBoundingClientRect();
      pick(xs[0] + (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (xs[1] - xs[0]));
    });
  }
  figure.replaceChildren(note, made);
}

export { ends };

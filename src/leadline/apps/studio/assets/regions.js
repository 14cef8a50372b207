// Regions of outliers over the picture. The measurements of a clicked region are used when the scene is completed again.

import { TOUCH, element } from '/assets/api.js';

const LEFT_OUT = [214, 40, 57], KEPT = [38, 160, 96];

export class Regions {
  /** `regions` are those of the summary; `changed` is called when one was clicked. */
  constructor(regions, content, changed) {
    const [width, height] = new Uint32Array(content, 0, 2);
    this.labels = new Uint16Array(content, 8, width * height);
    this.kept = new Set(regions.flatMap(({ kept }, i) => (kept ? [i + 1] : [])));
    this.before = [...this.kept].join();
    this.changed = changed;
    this.pointed = 0;
    this.canvas = element('canvas', { className: 'regions', width, height });
    this.canvas.setAttribute('aria-label', 'Regions of measurements that were left out');
    this.canvas.addEventListener('pointermove', (event) => this.#point(this.at(event)));
    this.canvas.addEventListener('pointerleave', () => this.#point(0));
    this.canvas.addEventListener('click', (event) => { const label = this.at(event); if (label) this.toggle(label); });
    this.draw();
  }

  get differs() { return [...this.kept].sort((a, b) => a - b).join() !== this.before; }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = (offset, length, cells) => Math.min(cells - 1, Math.max(0, Math.floor((offset / length) * cells)));
    const column = place(event.clientX - box.left, box.width, this.canvas.width);
    return this.labels[place(event.clientY - box.top, box.height, this.canvas.height) * this.canvas.width + column];
  }

  toggle(label) {
    if (!this.kept.delete(label)) this.kept.add(label);
    this.draw();
    this.changed();
  }

  #point(label) {
    if (label === this.pointed) return;
    this.pointed = label;
    this.canvas.style.cursor = label ? 'pointer' : '';
    this.draw();
  }

  draw() {
    const { width, height } = this.canvas;
    const pen = this.canvas.getContext('2d');
    const pixels = pen.createImageData(width, height);
    const { labels } = this;
    for (let i = 0; i < labels.length; i++) {
      const label = labels[i];
      if (!label) continue;
      const border = labels[i - 1] !== label || labels[i + 1] !== label || labels[i - width] !== label || labels[i + width] !== label;
      pixels.data.set([...(this.kept.has(label) ? KEPT : LEFT_OUT), border ? 255 : label === this.pointed ? 190 : 110], 4 * i);
    }
    pen.putImageData(pixels, 0, 0);
  }

  /** A box for each region, and the button that completes the scene again. */
  tools(regions, complete) {
    const again = element('button', { id: 'keep-regions', type: 'button', textContent: 'Complete again', disabled: true });
    again.addEventListener('click', () => complete([...this.kept]));
    const boxes = regions.map(({ text }, i) => {
      const box = element('input', { type: 'checkbox', checked: this.kept.has(i + 1) });
      box.dataset.region = i + 1;
      box.addEventListener('change', () => this.toggle(i + 1));
      return element('label', { className: 'region' }, box, `Use region ${i + 1}: ${text}`);
    });
    const onChange = this.changed;
    this.changed = () => {
      boxes.forEach((label, i) => { label.firstChild.checked = this.kept.has(i + 1); });
      again.disabled = !this.differs;
      onChange();
    };
    return [element('span', { textContent: `Red regions were left out. ${TOUCH ? 'Tap' : 'Click'} one to use its measurements, then complete again.` }), ...boxes, again];
  }
}

// The large picture: one view, two under a slider, or one that is painted on.

import { element, find } from '/assets/api.js';

const frame = find('#frame');

function picture(source, alt) {
  return element('img', { src: source, alt, draggable: false });
}

function stack(width, height, ...layers) {
  const made = element('div', { className: 'stack' }, ...layers);
  frame.style.setProperty('--aspect', width / height);
  frame.replaceChildren(made);
  return made;
}

export function showPicture(source, alt, width, height) {
  stack(width, height, picture(source, alt));
}

/** Two pictures, the right one uncovered by a handle that pointer and arrow keys move. */
export function showPair(left, right, width, height) {
  const upper = picture(right.source, right.label);
  upper.classList.add('upper');
  const slide = element('div', { className: 'slide', tabIndex: 0 });
  for (const [name, value] of [['role', 'slider'], ['aria-label', 'Compare'], ['aria-valuemin', 0], ['aria-valuemax', 100]]) {
    slide.setAttribute(name, value);
  }
  const made = stack(
    width, height, picture(left.source, left.label), upper, element('div', { className: 'handle' }),
    element('div', { className: 'tag', textContent: left.label }),
    element('div', { className: 'tag right', textContent: right.label }), slide,
  );
  let cut = 50;
  const put = (value) => {
    cut = Math.min(100, Math.max(0, value));
    made.style.setProperty('--cut', `${cut}%`);
    slide.setAttribute('aria-valuenow', Math.round(cut));
  };
  const follow = (event) => {
    const box = made.getBoundingClientRect();
    put(((event.clientX - box.left) / box.width) * 100);
  };
  slide.addEventListener('pointerdown', (event) => { slide.setPointerCapture(event.pointerId); follow(event); });
  slide.addEventListener('pointermove', (event) => { if (event.buttons) follow(event); });
  slide.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -2, ArrowRight: 2, Home: -100, End: 100 }[event.key];
    if (step) { put(cut + step); event.preventDefault(); }
  });
  put(50);
}

/** A mask over the measurements, in the picture's own pixels; it outlives the view that it is drawn on. */
export class Mask {
  constructor() {
    this.canvas = element('canvas', { className: 'paint' });
    this.radius = 24;
    this.erase = false;
    this.empty = true;
    this.last = null;
    this.canvas.addEventListener('pointerdown', (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.last = null;
      this.#stroke(event);
    });
    this.canvas.addEventListener('pointermove', (event) => { if (event.buttons) this.#stroke(event); });
  }

  fit(width, height) {
    if (this.canvas.width === width && this.canvas.height === height) return;
    Object.assign(this.canvas, { width, height });
    this.empty = true;
  }

  clear() {
    this.canvas.getContext('2d').clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.empty = true;
  }

  showOver(source, width, height) {
    this.fit(width, height);
    stack(width, height, picture(source, 'Measurements'), this.canvas);
  }

  /** White where painted, black elsewhere, as a PNG. */
  file() {
    const { width, height } = this.canvas;
    const copy = element('canvas', { width, height });
    const pen = copy.getContext('2d');
    pen.drawImage(this.canvas, 0, 0);
    const pixels = pen.getImageData(0, 0, width, height);
    for (let i = 0; i < pixels.data.length; i += 4) {
      const on = pixels.data[i + 3] > 127 ? 255 : 0;
      pixels.data.set([on, on, on, 255], i);
    }
    pen.putImageData(pixels, 0, 0);
    return new Promise((resolve) => { copy.toBlob(resolve, 'image/png'); });
  }

  #stroke(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width;
    const here = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const pen = this.canvas.getContext('2d');
    pen.globalCompositeOperation = this.erase ? 'destination-out' : 'source-over';
    pen.strokeStyle = '#ff2a4d';
    pen.lineCap = 'round';
    pen.lineWidth = 2 * this.radius;
    pen.beginPath();
    pen.moveTo(...(this.last || here));
    pen.lineTo(here[0] + 0.01, here[1]);
    pen.stroke();
    this.last = here;
    this.empty = false;
  }
}

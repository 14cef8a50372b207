// The large picture: one view, two views under a slider, or a view to paint on.

import { element, find } from '/assets/api.js';

const frame = find('#frame');

/** An image that has been loaded, so that showing it never leaves the frame black. Rejects if it cannot be loaded. */
export async function loadImage(source, alt) {
  const image = element('img', { src: source, alt, draggable: false });
  await image.decode().catch(() => { throw new Error(`The view “${alt}” could not be loaded; complete the scene again.`); });
  return image;
}

function stack(width, height, ...layers) {
  const made = element('div', { className: 'stack' }, ...layers);
  frame.style.setProperty('--aspect', width / height);
  frame.replaceChildren(made);
  return made;
}

export function showPicture(image, width, height, ...layers) {
  stack(width, height, image, ...layers);
}

/** Two loaded images with labels. A handle, moved by pointer or arrow keys, divides them. */
export function showPair(left, right, width, height) {
  right.image.classList.add('upper');
  const slide = element('div', { className: 'slide', tabIndex: 0 });
  for (const [name, value] of [['role', 'slider'], ['aria-label', 'Divider between the two views'], ['aria-valuemin', 0], ['aria-valuemax', 100]]) {
    slide.setAttribute(name, value);
  }
  const made = stack(
    width, height, left.image, right.image, element('div', { className: 'handle' }),
    element('div', { className: 'tag', textContent: left.label }),
    element('div', { className: 'tag right', textContent: right.label }), slide,
  );
  let divider = 50;
  const moveTo = (value) => {
    divider = Math.min(100, Math.max(0, value));
    made.style.setProperty('--divider', `${divider}%`);
    slide.setAttribute('aria-valuenow', Math.round(divider));
  };
  const follow = (event) => {
    const box = made.getBoundingClientRect();
    moveTo(((event.clientX - box.left) / box.width) * 100);
  };
  slide.addEventListener('pointerdown', (event) => { slide.setPointerCapture(event.pointerId); follow(event); });
  slide.addEventListener('pointermove', (event) => { if (event.buttons) follow(event); });
  slide.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -2, ArrowRight: 2, Home: -100, End: 100 }[event.key];
    if (step) { moveTo(divider + step); event.preventDefault(); }
  });
  moveTo(50);
}

/** A mask over the measurements in the pixels of the image. It is kept while other views are shown. */
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

  showOver(image, width, height) {
    this.fit(width, height);
    stack(width, height, image, this.canvas);
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

// The depth under the pointer: one request at a time, for the place where the pointer was last.

import { find, get } from '/assets/api.js';

const metres = (value) => `${value >= 100 ? value.toFixed(1) : value >= 0.1 ? value.toFixed(3) : value.toPrecision(2)} m`;

/** The sentence for the values at a pixel; `names` are the values of the view that is shown, each with its title. */
function sentence(values, names, column, row) {
  const parts = names.filter(([name]) => Number.isFinite(values[name])).map(([name, title]) => {
    const sigma = name === 'depth' && values.sigma ? ` ± ${metres(values.sigma)}` : '';
    return `${title ? `${title} ` : ''}${metres(values[name])}${sigma}`;
  });
  if (values.measured) parts.push(`measured ${metres(values.measured)}`);
  if (values.reference) parts.push(`ground truth ${metres(values.reference)}`);
  return `column ${column}, row ${row}: ${parts.join(', ') || 'no depth'}`;
}

/**
 * Show the values under the pointer while it is over the frame. `look` returns {revision, width, height, names} of
 * what is shown, or null.
 */
export function followPointer(frame, look) {
  const readout = find('#readout');
  let next = null, busy = false;
  const ask = async () => {
    if (busy) return;
    busy = true;
    while (next) {
      const { revision, names, column, row } = next;
      next = null;
      const values = await get(`/api/values/${revision}/${column}/${row}`).catch(() => null); // a new result replaces it
      if (values && !next && look()?.revision === revision) readout.textContent = sentence(values, names, column, row);
    }
    busy = false;
  };
  const follow = (event) => {
    const shown = look(), box = frame.querySelector('.stack')?.getBoundingClientRect();
    if (!shown || !box) return;
    const column = Math.floor(((event.clientX - box.left) / box.width) * shown.width);
    const row = Math.floor(((event.clientY - box.top) / box.height) * shown.height);
    if (column < 0 || row < 0 || column >= shown.width || row >= shown.height) { clear(); return; }
    next = { ...shown, column, row };
    ask();
  };
  const clear = () => { next = null; readout.textContent = ''; };
  frame.addEventListener('pointermove', follow);
  frame.addEventListener('pointerdown', follow);
  frame.addEventListener('pointerleave', (event) => { if (event.pointerType === 'mouse') clear(); });
  return clear;
}

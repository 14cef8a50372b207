// The places for files: choosing, dropping, guessing which file is what, and saying what was found in each.

import { element, find, post, run, upload } from '/assets/api.js';

export const held = {}; // by role: what the server found in the file
let start = null;
let changed = () => {};

const KIND_WORDS = [
  ['extrinsics', /extrin|transform|lidar.?to|velo.?to|_t_|pose/i],
  ['camera', /cam|intrin|calib/i],
  ['reference', /(^|[_-])(gt|ref|reference|true|truth|ground)([_.-]|$)/i],
  ['prior', /prior|mono|relative|disp|pred|anything|moge|midas|rel/i],
  ['sparse', /sparse|lidar|tof|measure|depth|points|velodyne|raw/i],
];

/** Which place a dropped file most likely belongs to; null if nothing fits. */
export function guessRole(name, taken) {
  const suffix = (name.match(/\.[a-z0-9]+$/i) || [''])[0].toLowerCase();
  const free = (role) => !taken.has(role);
  if (suffix === '.json') return /extrin|transform|pose|_to_/i.test(name) ? 'extrinsics' : 'camera';
  if (['.ply', '.pcd', '.las', '.laz'].includes(suffix)) return 'sparse';
  if (['.jpg', '.jpeg', '.webp', '.bmp'].includes(suffix)) return 'image';
  for (const [role, pattern] of KIND_WORDS) if (pattern.test(name) && free(role) && role !== 'camera' && role !== 'extrinsics') return role;
  if (suffix === '.png' && free('image')) return 'image';
  if (!start.suffixes.depth.includes(suffix)) return null;
  return ['sparse', 'prior', 'reference'].find(free) || null;
}

const slotOf = (role) => find(`.slot[data-role="${role}"]`);
const size = (facts) => (facts.size ? `${facts.size[0]} × ${facts.size[1]}` : '');

function describe(role, facts) {
  if (facts.cloud) return `${facts.points.toLocaleString('en')} points`;
  if (role === 'sparse' || role === 'reference') {
    const share = (100 * facts.count) / (facts.size[0] * facts.size[1]);
    return `${size(facts)}, ${facts.count.toLocaleString('en')} pixels measured (${share < 10 ? share.toFixed(1) : Math.round(share)} %)`;
  }
  return size(facts);
}

export function show(role, facts) {
  held[role] = facts;
  const slot = slotOf(role);
  if (!slot) return;
  slot.classList.remove('wrong');
  slot.classList.add('filled');
  const hint = slot.querySelector('.hint');
  hint.replaceChildren(element('span', { className: 'name', textContent: facts.name }), element('br'), describe(role, facts));
  if (!slot.querySelector('.remove')) {
    const button = element('button', { className: 'remove', textContent: '×', type: 'button', title: 'Remove this file' });
    button.setAttribute('aria-label', `Remove the ${slot.querySelector('b').textContent.toLowerCase()}`);
    button.addEventListener('click', () => remove(role));
    slot.append(button);
  }
  if (['camera', 'extrinsics', 'reference'].includes(role)) find('#more-files').open = true;
  if (role === 'sparse') sayUnit();
  find('#reference-unit-field').hidden = !held.reference;
  changed(role);
}

function empty(role) {
  delete held[role];
  const slot = slotOf(role);
  slot.classList.remove('filled', 'wrong');
  slot.querySelector('.hint').textContent = slot.dataset.hint;
  slot.querySelector('input').value = '';
  slot.querySelector('.remove')?.remove();
  if (role === 'sparse') sayUnit();
  find('#reference-unit-field').hidden = !held.reference;
  changed(role);
}

export function emptyAll() {
  for (const slot of document.querySelectorAll('.slot')) empty(slot.dataset.role);
}

async function remove(role) {
  await post('/api/drop', { role });
  empty(role);
}

/** The unit, loudly where nobody stated it. */
function sayUnit() {
  const facts = held.sparse;
  const field = find('#unit-field'), say = find('#unit-say');
  field.hidden = !facts || Boolean(facts.cloud);
  if (field.hidden) return;
  const span = facts.near === null ? 'nothing is measured' : `${Number(facts.near.toPrecision(3))} to ${Number(facts.far.toPrecision(3))} m`;
  say.className = facts.guessed ? 'say guess' : 'say';
  say.textContent = facts.guessed
    ? `Guessed: ${facts.unit}. So the measurements lie at ${span}. If that is wrong, choose the unit above.`
    : `Read as ${facts.unit}: ${span}.`;
}

async function look(role) {
  const unit = role === 'sparse' ? find('#unit').value : role === 'reference' ? find('#reference-unit').value : null;
  const facts = await run('/api/inspect', { role, unit: unit || null });
  if (facts) show(role, facts);
}

function wrong(role, text) {
  const slot = slotOf(role);
  delete held[role];
  slot.classList.remove('filled');
  slot.classList.add('wrong');
  slot.querySelector('.hint').textContent = text;
  if (role === 'sparse') sayUnit();
  changed(role);
}

export async function take(role, file) {
  const slot = slotOf(role);
  const bar = element('progress', { max: 1, value: 0 });
  try {
    if (file.size > start.limit) {
      const mega = (bytes) => (bytes / 2 ** 20).toFixed(1);
      throw new Error(`${file.name}: ${mega(file.size)} MB are more than the ${mega(start.limit)} MB that leadline studio was started for (--upload-limit).`);
    }
    slot.querySelector('label').append(bar);
    await upload(role, file, file.name, (share) => { bar.value = share; });
    await look(role);
  } catch (error) {
    wrong(role, error.message);
    post('/api/drop', { role }).catch(() => {});
  } finally {
    bar.remove();
  }
}

function dropAnywhere(event, complain) {
  const onto = event.target.closest?.('.slot');
  const dropped = [...event.dataTransfer.files];
  if (onto && dropped.length === 1) return take(onto.dataset.role, dropped[0]);
  const taken = new Set(Object.keys(held));
  const order = [...dropped].sort((a, b) => Number(/\.jpe?g$/i.test(b.name)) - Number(/\.jpe?g$/i.test(a.name)));
  const lost = [];
  for (const file of order) {
    const role = guessRole(file.name, taken);
    if (!role) { lost.push(file.name); continue; }
    taken.add(role);
    take(role, file);
  }
  if (lost.length) complain(`${lost.join(', ')}: it is not clear what this is. Drop it onto its place in the list.`);
  return null;
}

/** Show again what the server still has from before this page was loaded. */
export async function restore(files) {
  for (const role of Object.keys(files)) {
    try {
      if (!slotOf(role)) throw new Error('a mask belongs to the drawing, which is gone');
      await look(role);
    } catch { await post('/api/drop', { role }); }
  }
}

export function setUp(told, onChange, complain) {
  start = told;
  changed = onChange;
  for (const slot of document.querySelectorAll('.slot')) {
    const { role } = slot.dataset;
    slot.dataset.hint = slot.querySelector('.hint').textContent;
    const input = slot.querySelector('input');
    input.id = `file-${role}`;
    input.addEventListener('change', () => { if (input.files[0]) take(role, input.files[0]); });
  }
  find('#unit').addEventListener('change', () => { if (held.sparse) look('sparse').catch((error) => wrong('sparse', error.message)); });
  find('#reference-unit').addEventListener('change', () => { if (held.reference) look('reference').catch((error) => wrong('reference', error.message)); });
  const veil = find('#drop-veil');
  document.addEventListener('dragover', (event) => {
    event.preventDefault();
    const over = event.target.closest?.('.slot');
    veil.hidden = Boolean(over);
    for (const slot of document.querySelectorAll('.slot')) slot.classList.toggle('over', slot === over);
  });
  const done = () => { veil.hidden = true; for (const slot of document.querySelectorAll('.slot.over')) slot.classList.remove('over'); };
  document.addEventListener('dragleave', (event) => { if (!event.relatedTarget) done(); });
  document.addEventListener('drop', (event) => { event.preventDefault(); done(); dropAnywhere(event, complain); });
}

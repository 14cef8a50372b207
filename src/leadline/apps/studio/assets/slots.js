// The fields for files: choosing, dropping, guessing the role of a dropped file, and showing what is in each.

import { element, find, post, run, upload } from '/assets/api.js';

export const held = {}; // by role: what the server found in the file
export const arriving = new Set(); // the roles whose file is being uploaded
let start = null;
let changed = () => {};

const ROLE_PATTERNS = [
  ['reference', /(^|[_-])(gt|ref|reference|true|truth|ground)([_.-]|$)/i],
  ['prior', /prior|mono|relative|disp|pred|anything|moge|midas|rel/i],
  ['sparse', /sparse|lidar|tof|measure|depth|points|velodyne|raw/i],
];
const UNIT_FIELDS = { sparse: 'unit', reference: 'reference-unit' };

/** The role that a dropped file most likely has; null if none fits. */
export function guessRole(name, taken) {
  const suffix = (name.match(/\.[a-z0-9]+$/i) || [''])[0].toLowerCase();
  const free = (role) => !taken.has(role);
  if (suffix === '.json') return /extrin|transform|pose|_to_/i.test(name) ? 'extrinsics' : 'camera';
  if (start.cloud_suffixes.includes(suffix)) return 'sparse';
  if (['.jpg', '.jpeg', '.webp', '.bmp'].includes(suffix)) return 'image';
  for (const [role, pattern] of ROLE_PATTERNS) if (pattern.test(name) && free(role)) return role;
  if (suffix === '.png' && free('image')) return 'image';
  if (!start.depth_suffixes.includes(suffix)) return null;
  return ['sparse', 'prior', 'reference'].find(free) || null;
}

export const isCloud = () => held.sparse?.points != null;

/** The unit that was chosen for a depth map: a name, metres per count as text, or null to guess it. */
export function unitOf(role) {
  const id = UNIT_FIELDS[role];
  if (!id || (role === 'sparse' && isCloud())) return null;
  const { value } = find(`#${id}`);
  return (value === 'other' ? find(`#${id}-number`).value.trim() : value) || null;
}

export function setUnit(unit) {
  find('#unit').value = unit || '';
  find('#unit-number-field').hidden = true;
}

const slotOf = (role) => find(`.slot[data-role="${role}"]`);
const size = (facts) => (facts.size ? `${facts.size[0]} × ${facts.size[1]}` : '');

function describe(facts) {
  if (facts.points != null) return `${facts.points.toLocaleString('en')} points`;
  if (facts.count == null) return size(facts);
  const share = (100 * facts.count) / (facts.size[0] * facts.size[1]);
  return `${size(facts)}, ${facts.count.toLocaleString('en')} pixels with depth (${share < 10 ? Number(share.toPrecision(2)) : Math.round(share)}\u00a0%)`;
}

export function show(role, facts) {
  held[role] = facts;
  const slot = slotOf(role);
  if (!slot) return;
  slot.classList.remove('wrong');
  slot.classList.add('filled');
  const hint = slot.querySelector('.hint');
  hint.replaceChildren(element('span', { className: 'name', textContent: facts.name }), element('br'), describe(facts));
  if (!slot.querySelector('.remove')) {
    const button = element('button', { className: 'remove', textContent: '×', type: 'button', title: 'Remove this file' });
    button.setAttribute('aria-label', `Remove: ${slot.querySelector('b').textContent}`);
    button.addEventListener('click', () => remove(role));
    slot.append(button);
  }
  if (['camera', 'extrinsics', 'reference'].includes(role)) find('#more-files').open = true;
  update(role);
}

function empty(role) {
  delete held[role];
  const slot = slotOf(role);
  slot.classList.remove('filled', 'wrong');
  slot.querySelector('.hint').textContent = slot.dataset.hint;
  slot.querySelector('input').value = '';
  slot.querySelector('.remove')?.remove();
  update(role);
}

export function emptyAll() {
  for (const slot of document.querySelectorAll('.slot')) empty(slot.dataset.role);
}

async function remove(role) {
  await post('/api/remove', { role });
  empty(role);
}

function update(role) {
  if (role === 'sparse') showUnit();
  find('#reference-unit-field').hidden = !held.reference;
  changed(role);
}

/** The unit of the measurements, with a warning if it was guessed. */
function showUnit() {
  const facts = held.sparse;
  const field = find('#unit-field'), status = find('#unit-status');
  field.hidden = !facts || isCloud();
  if (field.hidden) return;
  const range = facts.near === null ? 'nothing is measured' : `${Number(facts.near.toPrecision(3))} to ${Number(facts.far.toPrecision(3))} m`;
  status.className = facts.unit_guessed ? 'status warning' : 'status';
  status.textContent = facts.unit_guessed
    ? `The unit was guessed: ${facts.unit}, which gives ${range}. Choose the unit above if this is wrong.`
    : `Read in the unit ${facts.unit}: ${range}.`;
}

async function inspect(role) {
  const facts = await run('/api/inspect', { role, unit: unitOf(role) });
  if (facts) show(role, facts);
}

function showWrong(role, text) {
  const slot = slotOf(role);
  delete held[role];
  slot.classList.remove('filled');
  slot.classList.add('wrong');
  slot.querySelector('.hint').textContent = text;
  update(role);
}

export async function take(role, file) {
  const slot = slotOf(role);
  const bar = element('progress', { max: 1, value: 0 });
  arriving.add(role);
  changed(role);
  try {
    if (file.size > start.upload_limit) {
      const megabytes = (bytes) => (bytes / 2 ** 20).toFixed(1);
      throw new Error(`${file.name} has ${megabytes(file.size)} MB, and ${megabytes(start.upload_limit)} MB are allowed. Start leadline studio with a larger --upload-limit.`);
    }
    slot.querySelector('label').append(bar);
    await upload(role, file, file.name, (share) => { bar.value = share; });
    await inspect(role);
    if (role === 'prior') { find('#prior-from').value = 'file'; changed(role); }
  } catch (error) {
    showWrong(role, error.message);
    post('/api/remove', { role }).catch(() => {});
  } finally {
    bar.remove();
    arriving.delete(role);
    changed(role);
  }
}

function takeDropped(event, complain) {
  const target = event.target.closest?.('.slot');
  const dropped = [...event.dataTransfer.files];
  if (target && dropped.length === 1) { take(target.dataset.role, dropped[0]); return; }
  const taken = new Set(Object.keys(held));
  const order = [...dropped].sort((a, b) => Number(/\.jpe?g$/i.test(b.name)) - Number(/\.jpe?g$/i.test(a.name)));
  const unknown = [];
  for (const file of order) {
    const role = guessRole(file.name, taken);
    if (!role) { unknown.push(file.name); continue; }
    taken.add(role);
    take(role, file);
  }
  if (unknown.length) complain(`${unknown.join(', ')}: the kind of file could not be recognised. Drop it onto its field in the list.`);
}

/** Show the files that the server still has from before this page was loaded. */
export async function restore(files) {
  if (files.prior) find('#prior-from').value = 'file';
  for (const role of Object.keys(files)) {
    try {
      if (!slotOf(role)) throw new Error('the drawing of the mask is gone');
      await inspect(role);
    } catch { await post('/api/remove', { role }); }
  }
}

function setUpUnit(role) {
  const id = UNIT_FIELDS[role];
  const select = find(`#${id}`), number = find(`#${id}-number`);
  const look = () => { if (held[role]) inspect(role).catch((error) => showWrong(role, error.message)); };
  select.addEventListener('change', () => {
    find(`#${id}-number-field`).hidden = select.value !== 'other';
    if (select.value === 'other') number.focus();
    if (select.value !== 'other' || number.value) look();
    changed(role);
  });
  number.addEventListener('change', look);
}

export function setUp(offer, onChange, complain) {
  start = offer;
  changed = onChange;
  for (const slot of document.querySelectorAll('.slot')) {
    const { role } = slot.dataset;
    slot.dataset.hint = slot.querySelector('.hint').textContent;
    const input = slot.querySelector('input');
    input.id = `file-${role}`;
    input.addEventListener('change', () => { if (input.files[0]) take(role, input.files[0]); });
  }
  for (const role of Object.keys(UNIT_FIELDS)) setUpUnit(role);
  const veil = find('#drop-veil');
  document.addEventListener('dragover', (event) => {
    event.preventDefault();
    const over = event.target.closest?.('.slot');
    veil.hidden = Boolean(over);
    for (const slot of document.querySelectorAll('.slot')) slot.classList.toggle('over', slot === over);
  });
  const leave = () => { veil.hidden = true; for (const slot of document.querySelectorAll('.slot.over')) slot.classList.remove('over'); };
  document.addEventListener('dragleave', (event) => { if (!event.relatedTarget) leave(); });
  document.addEventListener('drop', (event) => { event.preventDefault(); leave(); takeDropped(event, complain); });
}

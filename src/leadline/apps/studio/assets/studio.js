// The page: what is chosen, what came of it, and which view of it is open.

import { element, find, get, post, run, upload } from '/assets/api.js';
import { Cloud } from '/assets/cloud.js';
import { metres, movedText, percent, showCurves, showExponent, showFacts, showTakeaway } from '/assets/panels.js';
import { emptyAll, held, restore, setUp, show } from '/assets/slots.js';
import { Mask, showPair, showPicture } from '/assets/viewer.js';

const TITLES = { image: 'Picture', measurements: 'Measurements', prior: 'Prior', depth: 'Depth', error: 'Error', normals: 'Normals', uncertainty: 'Uncertainty', points: '3D', compare: 'Compare', moved: 'Depth at λ', change: 'Change' };
const PRESET = 'as in the preset'; // an option that was left alone
const mask = new Mask();
let start = null, told = null, curves = null, moved = null, view = 'depth', cloud = null, loadedCloud = 0, working = 0;
const pair = { left: 'gdisp', right: 'ours', what: 'depth' };

// --- telling ---------------------------------------------------------------------------------------------

function trouble(text) {
  find('#trouble').hidden = !text;
  find('#trouble').textContent = text || '';
  if (text) find('#trouble').scrollIntoView({ block: 'nearest' });
}

function say(text) {
  find('#progress').hidden = !text;
  find('#progress-text').textContent = text ? `${text} …` : '';
}

/** Run work with its progress shown and its error told; undefined if it failed or was superseded. */
async function doing(path, wish, first) {
  working += 1;
  say(first);
  try {
    const outcome = await run(path, wish, say);
    trouble('');
    return outcome || undefined;
  } catch (error) {
    trouble(error.message);
    return undefined;
  } finally {
    working -= 1;
    if (!working) say('');
    ready();
  }
}

// --- choosing --------------------------------------------------------------------------------------------

function wish() {
  const options = {};
  for (const field of document.querySelectorAll('[data-option]')) if (field.value !== field.dataset.default) options[field.dataset.option] = field.value;
  return {
    prior: find('#prior-from').value, prior_kind: find('#prior-kind').value || null,
    unit: (!held.sparse?.cloud && find('#unit').value) || null, reference_unit: find('#reference-unit').value || null,
    uncertainty: find('#uncertainty').checked, options,
  };
}

function ready() {
  const file = find('#prior-from').value === 'file';
  const missing = [!held.image && 'a picture', !held.sparse && 'measurements', file && !held.prior && 'a prior'].filter(Boolean);
  if (held.sparse?.cloud && !held.camera) missing.push('the camera of the point cloud');
  find('#go').disabled = missing.length > 0 || working > 0;
  find('#needs').textContent = missing.length ? `Still needed: ${missing.join(', ')}.` : '';
  find('.slot[data-role="prior"]').classList.toggle('idle', !file);
  find('#kind-field').hidden = !file;
  find('#forget').hidden = !Object.keys(held).length;
  if (held.sparse?.cloud && !held.camera) find('#more-files').open = true;
}

function onFile(role) {
  if (['image', 'sparse'].includes(role) && mask.canvas.width && !mask.empty) { mask.clear(); post('/api/drop', { role: 'mask' }).catch(() => {}); }
  ready();
}

function fillForm() {
  const units = { mm: 'millimetres', cm: 'centimetres', m: 'metres', kitti: 'KITTI, 1/256 m', tum: 'TUM, 1/5000 m', vkitti: 'Virtual KITTI, cm', ibims: 'iBims-1, 50 m / 65535', 'moge-log': 'MoGe log code' };
  for (const select of [find('#unit'), find('#reference-unit')]) {
    select.append(element('option', { value: '', textContent: 'guess it' }));
    for (const unit of start.units) select.append(element('option', { value: unit, textContent: units[unit] ? `${unit}: ${units[unit]}` : unit }));
  }
  const from = find('#prior-from');
  from.append(element('option', { value: 'file', textContent: 'a file' }));
  for (const name of start.networks) from.append(element('option', { value: name, textContent: name === 'none' ? 'none: only smooth between measurements' : name }));
  from.addEventListener('change', ready);
  for (const option of start.options) {
    const id = `option-${option.name}`;
    const field = option.choices
      ? element('select', {}, ...option.choices.map((choice) => element('option', { value: choice, textContent: choice || PRESET })))
      : element('input', { type: 'text', placeholder: option.default || PRESET });
    Object.assign(field, { id, value: option.default });
    Object.assign(field.dataset, { option: option.name, default: option.default });
    const hint = element('span', { className: 'hint', textContent: option.help });
    find('#option-fields').append(element('div', { className: 'option' }, element('label', { htmlFor: id, textContent: option.flag }), field, hint));
  }
  for (const example of start.examples) {
    const button = element('button', { className: 'example', type: 'button' }, element('img', { src: `/api/example/${example.name}`, alt: '' }), element('b', { textContent: example.title }), element('span', { textContent: example.text }));
    button.dataset.example = example.name;
    button.addEventListener('click', () => tryExample(example.name));
    find('#examples').append(button);
  }
  find('#privacy').textContent = start.local
    ? 'Files stay on this computer: they go into a temporary folder and are removed when leadline studio ends.'
    : 'Files go to the computer that runs leadline studio, into a temporary folder, and are removed when it ends.';
}

async function tryExample(name) {
  const files = await doing('/api/example', { name }, 'Rendering the room');
  if (!files) return;
  emptyAll();
  mask.clear();
  find('#prior-from').value = 'file';
  find('#prior-kind').value = '';
  find('#unit').value = files.sparse.cloud ? '' : files.sparse.unit;
  for (const [role, facts] of Object.entries(files)) show(role, facts);
  find('#more-files').open = false;
  await complete();
}

async function complete() {
  trouble('');
  const outcome = await doing('/api/complete', wish(), 'Completing');
  if (!outcome) return;
  [told, curves, moved, loadedCloud] = [outcome, null, null, 0];
  find('#empty').hidden = true;
  find('#jump').hidden = false;
  find('#result').hidden = false;
  mask.fit(told.width, told.height);
  showFacts(told);
  showTakeaway(told);
  resetExponent();
  if (!tabs().includes(view)) view = 'depth';
  await openView(view);
  curves = await doing('/api/diagnose', {}, 'Drawing the curves');
  if (curves) showCurves(curves, moved, tryExponent);
}

// --- looking ---------------------------------------------------------------------------------------------

const tabs = () => [...told.views, ...(moved ? ['moved', 'change'] : []), 'points', 'compare'];
const source = (name) => `/api/view/${told.revision}/${name}`;

function legend(scheme, low, high, text) {
  find('#legend').replaceChildren(element('span', { textContent: low }), element('img', { src: `/api/ramp/${scheme}`, alt: '' }), element('span', { textContent: high }), element('span', { className: 'hint', textContent: text }));
}

async function openView(name) {
  view = name;
  find('#tabs').replaceChildren(...tabs().map((tab) => {
    const button = element('button', { textContent: TITLES[tab], type: 'button' });
    button.dataset.view = tab;
    button.setAttribute('role', 'tab');
    button.setAttribute('aria-selected', String(tab === view));
    button.addEventListener('click', () => openView(tab));
    return button;
  }));
  find('#tools').replaceChildren();
  find('#legend').replaceChildren();
  find('#points').hidden = view !== 'points';
  find('#frame').hidden = view === 'points';
  const span = [`${told.near.toPrecision(2)} m`, `${told.far.toPrecision(2)} m`];
  if (view === 'points') return openCloud();
  if (view === 'compare') return openPair();
  if (view === 'measurements') {
    mask.showOver(source('measurements'), told.width, told.height);
    paintTools();
  } else {
    const stamp = view === 'moved' || view === 'change' ? `?${moved.exponent}` : '';
    showPicture(source(view) + stamp, TITLES[view], told.width, told.height);
  }
  if (['depth', 'measurements', 'moved'].includes(view)) legend('depth', ...span, '');
  if (view === 'prior') legend('depth', 'near', 'far', 'relative: its own unit');
  if (view === 'error') legend('error', '0 %', percent(told.error_high), 'of the true depth');
  if (view === 'uncertainty') legend('error', '0', metres(told.uncertainty.high), 'one standard deviation');
  if (view === 'change') legend('error', '0 %', percent(moved.change_high), 'of the depth at the fit');
  if (view === 'normals') find('#legend').append(element('span', { className: 'hint', textContent: 'red: to the right, green: up, blue: towards the camera' }));
  return undefined;
}

function paintTools() {
  const size = element('input', { type: 'range', min: 3, max: Math.round(told.width / 6), value: mask.radius });
  size.addEventListener('input', () => { mask.radius = Number(size.value); });
  const erase = element('input', { type: 'checkbox', checked: mask.erase });
  erase.addEventListener('change', () => { mask.erase = erase.checked; });
  const again = element('button', { id: 'apply-mask', textContent: 'Complete without the painted ones', type: 'button' });
  again.addEventListener('click', applyMask);
  const clear = element('button', { id: 'clear-mask', textContent: 'Clear', type: 'button' });
  clear.addEventListener('click', async () => { mask.clear(); await post('/api/drop', { role: 'mask' }); if (told.removed) await complete(); });
  find('#tools').append(element('span', { textContent: 'Paint over measurements to remove them.' }), element('label', {}, 'Brush', size), element('label', {}, erase, 'Erase'), again, clear);
}

async function applyMask() {
  if (mask.empty) { trouble('Nothing is painted yet: draw on the picture first.'); return; }
  try {
    await upload('mask', await mask.file(), 'mask.png');
  } catch (error) { trouble(error.message); return; }
  await complete();
}

async function openCloud() {
  cloud = cloud || new Cloud(find('#points'));
  if (!cloud.works) {
    find('#tools').append('This browser cannot draw in 3D (WebGL is off). The point cloud can be downloaded below.');
    return;
  }
  if (loadedCloud !== told.revision) {
    const response = await fetch(`/api/points/${told.revision}`);
    if (!response.ok) { trouble('The points could not be loaded; complete again.'); return; }
    cloud.load(await response.arrayBuffer(), told.width, told.height);
    loadedCloud = told.revision;
  }
  cloud.draw();
  const colours = element('select', { id: 'cloud-colour' }, ...['picture', 'depth', ...(told.uncertainty ? ['uncertainty'] : [])].map((text, value) => element('option', { value, textContent: text })));
  colours.value = cloud.shown;
  colours.addEventListener('change', () => cloud.colour(Number(colours.value)));
  const back = element('button', { textContent: 'Reset view', type: 'button' });
  back.addEventListener('click', () => cloud.reset());
  find('#tools').append(element('label', {}, 'Colour', colours), back, element('span', { className: 'hint', textContent: 'Drag to turn, wheel or pinch to zoom, shift-drag to move.' }));
}

async function openPair() {
  const { left, right, what } = pair;
  const choose = (label, key, entries) => {
    const select = element('select', { id: `pair-${key}` }, ...entries.map(([value, textContent]) => element('option', { value, textContent })));
    select.value = pair[key];
    select.addEventListener('change', () => { pair[key] = select.value; if (view === 'compare') openView('compare'); });
    return element('label', {}, label, select);
  };
  const methods = Object.entries(start.methods).map(([name, text]) => [name, `${name}: ${text}`]);
  const whats = ['depth', ...(told.scores ? ['error'] : []), 'normals'];
  if (!whats.includes(what)) { pair.what = 'depth'; return openPair(); }
  find('#tools').append(choose('Left', 'left', methods), choose('Right', 'right', methods), choose('Show', 'what', whats.map((name) => [name, name])));
  const revision = told.revision;
  const found = [];
  for (const name of [left, right]) found.push(await doing('/api/method', { name }, `Running ${name}`));
  if (found.some((one) => !one) || view !== 'compare' || told.revision !== revision) return undefined;
  const side = (one) => ({ source: source(`${what}-${one.name}`), label: one.scores ? `${one.name}: ${percent(one.scores.absrel)}, ${metres(one.scores.mae)}` : one.name });
  showPair(side(found[0]), side(found[1]), told.width, told.height);
  if (what === 'error') legend('error', '0 %', percent(told.error_high), 'of the true depth');
  if (what === 'depth') legend('depth', `${told.near.toPrecision(2)} m`, `${told.far.toPrecision(2)} m`, '');
  return undefined;
}

// --- the exponent ----------------------------------------------------------------------------------------

function resetExponent() {
  const slider = find('#exponent');
  slider.min = Math.min(-4, Math.floor(told.exponent - 2));
  slider.max = Math.max(4, Math.ceil(told.exponent + 2));
  slider.value = told.exponent;
  find('#exponent-value').textContent = `λ ${told.exponent.toFixed(2)}`;
  find('#exponent-say').textContent = 'Move it to hold the exponent there; gain and offset are fitted anew.';
  find('#refit').disabled = true;
}

async function tryExponent(value) {
  find('#exponent').value = value;
  find('#exponent-value').textContent = `λ ${Number(value).toFixed(2)}`;
  const outcome = await doing('/api/exponent', { exponent: Number(value) }, 'Fitting at this exponent');
  if (!outcome) return;
  moved = outcome;
  find('#refit').disabled = false;
  find('#exponent-say').textContent = movedText(moved);
  if (curves) showExponent(curves, moved, tryExponent);
  await openView(view === 'change' ? 'change' : 'moved');
}

async function backToFit() {
  if (await doing('/api/exponent', { exponent: null }, 'Back to the fit') === undefined) return;
  moved = null;
  resetExponent();
  if (curves) showExponent(curves, null, tryExponent);
  await openView(view === 'moved' || view === 'change' ? 'depth' : view);
}

// --- beginning -------------------------------------------------------------------------------------------

async function begin() {
  start = await get('/api/start');
  setUp(start, onFile, trouble);
  fillForm();
  await restore(start.files);
  find('#go').addEventListener('click', complete);
  find('#exponent').addEventListener('input', (event) => tryExponent(Number(event.target.value)));
  find('#refit').addEventListener('click', backToFit);
  find('#forget').addEventListener('click', async () => { await post('/api/forget'); window.location.reload(); });
  for (const button of document.querySelectorAll('.copy')) {
    button.addEventListener('click', async () => {
      const text = button.previousElementSibling;
      if (navigator.clipboard) await navigator.clipboard.writeText(text.textContent);
      else window.getSelection().selectAllChildren(text); // browsers allow no more to pages from other machines
      button.textContent = navigator.clipboard ? 'Copied' : 'Selected';
      setTimeout(() => { button.textContent = 'Copy'; }, 1500);
    });
  }
  ready();
  document.body.dataset.ready = 'yes';
}

begin().catch((error) => trouble(error.message));

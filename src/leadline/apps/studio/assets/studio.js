// The page: the current result, the view of it that is open, and what the controls do.

import { TOUCH, element, find, get, post, run, upload } from '/assets/api.js';
import { Cloud, MARKS } from '/assets/cloud.js';
import { completeRequest, fillForm, setOptions, updateForm } from '/assets/form.js';
import { heldText, metres, percent, showCurves, showDownloads, showExponent, showFacts, showRecipes } from '/assets/panels.js';
import { followPointer } from '/assets/pointer.js';
import { Regions } from '/assets/regions.js';
import { emptyAll, restore, setUnit, setUp, show } from '/assets/slots.js';
import { Mask, loadImage, showPair, showPicture } from '/assets/viewer.js';

const TITLES = { image: 'Image', measurements: 'Measurements', prior: 'Prior', depth: 'Depth', regions: 'Left out', error: 'Error', normals: 'Normals', uncertainty: 'Uncertainty', points: '3D', compare: 'Compare', relative: 'Relative depth', held: 'Depth at λ', change: 'Change' };
const mask = new Mask();
let start = null, summary = null, curves = null, held = null, view = 'depth', cloud = null, loadedCloud = '', jobs = 0;
let nextExponent = null, fitting = false; // the newest value of the slider that was not sent yet
let viewCount = 0, exponentCount = 0; // responses that belong to an earlier count are outdated
const pair = { left: 'gdisp', right: null, what: 'depth' };
let shownPair = null; // the comparison that is on the screen

// --- progress and errors ---------------------------------------------------------------------------------

function showError(text) {
  find('#error').hidden = !text;
  find('#error').textContent = text || '';
  if (text) find('#error').scrollIntoView({ block: 'nearest' });
}

function showProgress(text) {
  find('#progress').hidden = !text;
  find('#progress-text').textContent = text ? `${text} …` : '';
}

/** Run a job while its progress is shown. Returns undefined if it failed, was cancelled or superseded. */
async function runJob(path, request, firstStage) {
  jobs += 1;
  updateForm(true);
  showProgress(firstStage);
  try {
    const result = await run(path, request, showProgress);
    showError('');
    return result || undefined;
  } catch (error) {
    showError(error.message);
    return undefined;
  } finally {
    jobs -= 1;
    if (!jobs) showProgress('');
    updateForm(jobs > 0);
  }
}

// --- completing ------------------------------------------------------------------------------------------

function onFileChange(role) {
  if (['image', 'sparse'].includes(role) && mask.canvas.width && !mask.empty) { mask.clear(); post('/api/remove', { role: 'mask' }).catch(() => {}); }
  updateForm(jobs > 0);
}

function showExamples(wanted) {
  find('#welcome').hidden = !wanted;
  find('#result').hidden = wanted;
  find('#to-result').hidden = !(wanted && summary);
  find('#to-examples').hidden = wanted;
  find('#jump').hidden = wanted;
}

async function tryExample(name) {
  const example = await runJob('/api/example', { name }, 'Rendering the example');
  if (!example) return;
  const { files, options } = example;
  emptyAll();
  mask.clear();
  find('#prior-from').value = 'file';
  find('#prior-kind').value = '';
  setOptions(options);
  setUnit(files.sparse.unit);
  for (const [role, facts] of Object.entries(files)) show(role, facts);
  find('#more-files').open = false;
  await complete();
}

/** Complete the scene; `keptRegions` are the regions of outliers whose measurements are used all the same. */
async function complete(keptRegions = []) {
  showError('');
  const result = await runJob('/api/complete', { ...completeRequest(), kept_regions: keptRegions }, 'Completing');
  if (!result) return;
  [summary, curves, held] = [result, null, null];
  mask.fit(summary.width, summary.height);
  showFacts(summary);
  showDownloads(summary, null);
  showRecipes(summary);
  for (const card of ['#exponent-card', '#diagnostics-card']) find(card).hidden = summary.relative;
  if (summary.relative) {
    await openView(tabs().includes(view) ? view : 'relative');
    showExamples(false);
    return;
  }
  resetExponent();
  if (['best', 'ours', 'result', null].includes(pair.right)) pair.right = summary.compare_as;
  if (!tabs().includes(view)) view = 'depth';
  await openView(view);
  showExamples(false);
  const found = await runJob('/api/diagnose', {}, 'Computing the curves');
  if (!found || summary !== result) return;
  curves = found;
  showCurves(curves, held, tryExponent);
}

// --- views -----------------------------------------------------------------------------------------------

const tabs = () => [...summary.views, ...(held ? ['held', 'change'] : []), ...(summary.relative ? [] : ['points', 'compare'])];
const source = (name) => `/api/view/${summary.revision}/${name}${held ? `?exponent=${held.exponent}` : ''}`;

function legend(scheme, low, high, text) {
  return [element('span', { textContent: low }), element('img', { src: `/api/ramp/${scheme}`, alt: '' }), element('span', { textContent: high }), element('span', { className: 'hint', textContent: text })];
}

/** The colours of depth with distances in metres; their places are those of the server. */
function depthLegend() {
  const labels = summary.ticks.map(([value, share], i) => {
    const label = element('span', { textContent: `${Number(value.toPrecision(3))}${i === summary.ticks.length - 1 ? ' m' : ''}` });
    label.style.left = `${100 * share}%`;
    return label;
  });
  return [element('div', { className: 'scale' }, element('img', { src: '/api/ramp/depth', alt: 'Colours of depth' }), ...labels)];
}

function legendOf(name) {
  switch (name) {
    case 'depth': case 'measurements': case 'held': return depthLegend();
    case 'prior': return legend('depth', 'near', 'far', 'relative depth, without a unit');
    case 'relative': {
      const [near, far] = [summary.near, summary.far].map((value) => (value === null ? null : metres(value)));
      return near ? legend('depth', near, far, 'metres of the network, which nothing confirms') : legend('depth', 'near', 'far', 'relative depth, without a unit');
    }
    case 'error': return legend('error', '0 %', percent(summary.error_high), 'of the true depth');
    case 'uncertainty': return legend('error', '0', metres(summary.uncertainty.high), 'one standard deviation');
    case 'change': return legend('error', '0 %', percent(held.change_high), 'of the depth at the fitted exponent');
    case 'normals': return [element('span', { className: 'hint', textContent: 'red: right, green: up, blue: towards the camera' })];
    default: return [];
  }
}

function showTabs() {
  find('#tabs').replaceChildren(...tabs().map((name) => {
    const button = element('button', { textContent: TITLES[name], type: 'button' });
    button.dataset.view = name;
    button.setAttribute('role', 'tab');
    button.setAttribute('aria-selected', String(name === view));
    button.addEventListener('click', () => openView(name));
    return button;
  }));
}

/** Open a view. What was shown before stays until the new view is loaded; a view that is outdated by then is dropped. */
async function openView(name) {
  view = name;
  viewCount += 1;
  const mine = viewCount;
  showTabs();
  find('#viewer').classList.add('loading');
  const prepare = { points: prepareCloud, compare: preparePair, regions: prepareRegions }[name] || preparePicture;
  try {
    const ready = await prepare(name, () => mine === viewCount);
    if (mine !== viewCount) return;
    if (!ready) {
      if (name === 'compare' && shownPair) { // it failed or was cancelled: the controls show what is on the screen again
        Object.assign(pair, shownPair);
        for (const [key, value] of Object.entries(pair)) if (find(`#pair-${key}`)) find(`#pair-${key}`).value = value;
      }
      return;
    }
    shownPair = name === 'compare' ? { ...pair } : null;
    clearReadout();
    find('#points').hidden = name !== 'points';
    find('#frame').hidden = name === 'points';
    find('#legend').replaceChildren(...ready.legend);
    find('#tools').replaceChildren(...ready.tools);
    ready.show();
  } catch (error) {
    if (mine === viewCount) showError(error.message);
  } finally {
    if (mine === viewCount) find('#viewer').classList.remove('loading');
  }
}

async function prepareRegions(name, current) {
  const { revision, regions, width, height } = summary;
  const [image, response] = await Promise.all([loadImage(source('image'), TITLES.image), fetch(`/api/regions/${revision}`)]);
  if (!response.ok) throw new Error('The regions could not be loaded; complete the scene again.');
  const content = await response.arrayBuffer();
  if (!current()) return null;
  const shown = new Regions(regions, content, () => {});
  return { legend: [], tools: shown.tools(regions, complete), show: () => showPicture(image, width, height, shown.canvas) };
}

async function preparePicture(name) {
  const image = await loadImage(source(name), TITLES[name]);
  const { width, height } = summary;
  const painting = name === 'measurements';
  return {
    legend: legendOf(name), tools: painting ? paintTools() : [],
    show: () => (painting ? mask.showOver(image, width, height) : showPicture(image, width, height)),
  };
}

function paintTools() {
  const size = element('input', { type: 'range', min: 3, max: Math.round(summary.width / 6), value: mask.radius });
  size.addEventListener('input', () => { mask.radius = Number(size.value); });
  const erase = element('input', { type: 'checkbox', checked: mask.erase });
  erase.addEventListener('change', () => { mask.erase = erase.checked; });
  const apply = element('button', { id: 'apply-mask', textContent: 'Complete without them', type: 'button' });
  apply.addEventListener('click', applyMask);
  const clear = element('button', { id: 'clear-mask', textContent: 'Clear', type: 'button' });
  clear.addEventListener('click', async () => { mask.clear(); await post('/api/remove', { role: 'mask' }); if (summary.measurements_removed) await complete(); });
  return [element('span', { textContent: 'Paint over measurements to remove them.' }), element('label', {}, 'Brush', size), element('label', {}, erase, 'Erase'), apply, clear];
}

async function applyMask() {
  if (mask.empty) { showError('Nothing is painted yet: paint on the image first.'); return; }
  try {
    await upload('mask', await mask.file(), 'mask.png');
  } catch (error) { showError(error.message); return; }
  await complete();
}

async function prepareCloud(_, current) {
  cloud = cloud || new Cloud(find('#points'));
  if (!cloud.works) return { legend: [], tools: ['This browser cannot draw in 3D, because WebGL is disabled. The point cloud can be downloaded below.'], show: () => {} };
  const key = `${summary.revision} ${held?.exponent}`;
  if (loadedCloud !== key) {
    const response = await fetch(`/api/points/${summary.revision}`);
    if (!response.ok) throw new Error('The points could not be loaded; complete the scene again.');
    const content = await response.arrayBuffer();
    if (!current()) return null;
    cloud.load(content, summary.width, summary.height);
    loadedCloud = key;
  }
  return { legend: cloudLegend(), tools: cloudTools(), show: () => cloud.draw() };
}

function cloudLegend() {
  const mark = (name, text) => {
    const dot = element('span', { className: 'mark' });
    dot.style.background = `rgb(${MARKS[name].map((value) => Math.round(255 * value))})`;
    return element('span', {}, dot, text);
  };
  const colours = legendOf(cloud.header.colourings[cloud.shown]);
  const { measurements, left_out: leftOut } = cloud.header;
  const marks = cloud.measurements ? [measurements > leftOut && mark('measured', 'measured'), leftOut && mark('left_out', 'measured, left out')] : [];
  return [...colours, ...marks.filter(Boolean)];
}

function cloudTools() {
  const set = (changes) => { cloud.set(changes); find('#legend').replaceChildren(...cloudLegend()); };
  const colours = element('select', { id: 'cloud-colour' }, ...cloud.header.colourings.map((textContent, value) => element('option', { value, textContent })));
  colours.value = cloud.shown;
  colours.addEventListener('change', () => set({ shown: Number(colours.value) }));
  const size = element('input', { id: 'cloud-size', type: 'range', min: 0.5, max: 4, step: 0.1, value: cloud.size });
  size.addEventListener('input', () => set({ size: Number(size.value) }));
  const box = (key, text, title) => {
    const made = element('input', { id: `cloud-${key}`, type: 'checkbox', checked: cloud[key] });
    made.addEventListener('change', () => set({ [key]: made.checked }));
    return element('label', { title }, made, text);
  };
  const reset = element('button', { textContent: 'Reset view', type: 'button' });
  reset.addEventListener('click', () => cloud.reset());
  const hint = TOUCH ? 'One finger rotates, two fingers zoom and move.' : 'Drag to rotate, wheel to zoom, shift-drag to move.';
  const at = held ? [element('span', { textContent: `at λ = ${held.exponent.toFixed(2)}` })] : [];
  return [
    element('label', {}, 'Colour', colours), element('label', {}, 'Point size', size), box('measurements', 'Measurements', 'Show the measured points'),
    box('camera', 'Camera', 'Show where the image was taken'), box('edges', 'Flying pixels', 'Also show pixels at depth edges, which lie between two surfaces'),
    reset, ...at, element('span', { className: 'hint', textContent: hint }),
  ];
}

function pairTools(whats) {
  const choose = (label, key, entries) => {
    const select = element('select', { id: `pair-${key}` }, ...entries.map(([value, textContent]) => element('option', { value, textContent })));
    select.value = pair[key];
    select.addEventListener('change', () => { pair[key] = select.value; openView('compare'); });
    return element('label', {}, label, select);
  };
  const methods = start.methods.filter(({ name }) => name !== 'result' || summary.compare_as === 'result').map(({ name, title }) => [name, title]);
  return [choose('Left', 'left', methods), choose('Right', 'right', methods), choose('Show', 'what', whats.map((what) => [what, what]))];
}

async function preparePair(_, current) {
  const { revision, width, height, scores } = summary;
  const whats = ['depth', ...(scores ? ['error'] : []), 'normals'];
  if (!whats.includes(pair.what)) pair.what = 'depth';
  const { left, right, what } = pair;
  const sides = [];
  for (const name of [left, right]) {
    const found = await runJob('/api/method', { name }, 'Running the method');
    if (!found || !current() || summary.revision !== revision) return null;
    const label = found.scores ? `${found.title}: AbsRel ${percent(found.scores.absrel)}, MAE ${metres(found.scores.mae)}` : found.title;
    sides.push({ label, image: await loadImage(source(`${what}-${name}`), label) });
  }
  return { legend: legendOf(what), tools: pairTools(whats), show: () => showPair(...sides, width, height) };
}

// --- the exponent ----------------------------------------------------------------------------------------

function resetExponent() {
  exponentCount += 1;
  nextExponent = null;
  const slider = find('#exponent');
  slider.min = Math.min(-4, Math.floor(summary.exponent - 2));
  slider.max = Math.max(4, Math.ceil(summary.exponent + 2));
  slider.value = summary.exponent;
  find('#exponent-value').textContent = `λ ${summary.exponent.toFixed(2)}`;
  find('#exponent-text').textContent = 'Move the slider to set the exponent by hand; gain and offset are fitted again.';
  find('#refit').disabled = true;
}

async function tryExponent(value) {
  exponentCount += 1;
  find('#exponent').value = value;
  find('#exponent-value').textContent = `λ ${Number(value).toFixed(2)}`;
  nextExponent = Number(value);
  if (fitting) return;
  // One request at a time: two may overtake each other on their way, and the server answers the last that arrives.
  fitting = true;
  let result, mine;
  while (nextExponent !== null) {
    const exponent = nextExponent;
    nextExponent = null;
    mine = exponentCount;
    result = await runJob('/api/exponent', { exponent }, 'Fitting at this exponent');
  }
  fitting = false;
  if (!result || mine !== exponentCount) return;
  held = result;
  find('#refit').disabled = false;
  find('#exponent-text').textContent = heldText(held);
  showDownloads(summary, held);
  if (curves) showExponent(curves, held, tryExponent);
  await openView(['change', 'points'].includes(view) ? view : 'held');
}

async function returnToFit() {
  if (!await runJob('/api/exponent', { exponent: null }, 'Returning to the fit')) return;
  held = null;
  resetExponent();
  showDownloads(summary, null);
  if (curves) showExponent(curves, null, tryExponent);
  await openView(view === 'held' || view === 'change' ? 'depth' : view);
}

/** What is under the pointer in the view that is open: the names of its values, each with the title to show. */
function lookedAt() {
  if (!summary || summary.relative || view === 'points') return null;
  const { revision, width, height } = summary;
  const title = (name) => start.methods.find((method) => method.name === name)?.title.split(':')[0] ?? name;
  const names = { held: [['held', '']], change: [['held', `λ ${held?.exponent.toFixed(2)}:`], ['depth', 'fit:']] }[view] ?? [['depth', '']];
  const compared = shownPair ? [shownPair.left, shownPair.right].map((name) => [`depth-${name}`, `${title(name)}:`]) : names;
  return { revision, width, height, names: view === 'compare' ? compared : names };
}
let clearReadout = () => {};

// --- start -----------------------------------------------------------------------------------------------

function setUpCopying(button) {
  button.addEventListener('click', async () => {
    const text = button.previousElementSibling;
    if (navigator.clipboard) await navigator.clipboard.writeText(text.textContent);
    else window.getSelection().selectAllChildren(text); // without HTTPS, browsers deny the clipboard to other machines' pages
    button.textContent = navigator.clipboard ? 'Copied' : 'Selected';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
}

async function begin() {
  start = await get('/api/start');
  setUp(start, onFileChange, showError);
  fillForm(start, tryExample);
  await restore(start.files);
  find('#prior-from').addEventListener('change', () => updateForm(jobs > 0));
  find('#go').addEventListener('click', () => complete());
  find('#cancel').addEventListener('click', () => post('/api/cancel').catch((error) => showError(error.message)));
  find('#to-examples').addEventListener('click', () => showExamples(true));
  find('#to-result').addEventListener('click', () => { showExamples(false); cloud?.draw(); });
  find('#exponent').addEventListener('input', (event) => tryExponent(Number(event.target.value)));
  find('#refit').addEventListener('click', returnToFit);
  find('#forget').addEventListener('click', async () => { await post('/api/forget'); window.location.reload(); });
  document.querySelectorAll('.copy').forEach(setUpCopying);
  clearReadout = followPointer(find('#frame'), lookedAt);
  updateForm(false);
  document.body.dataset.ready = 'yes';
}

begin().catch((error) => showError(error.message));

// The choices beside the files: the prior, the unit, the options of the method; and what is still missing.

import { TOUCH, element, find } from '/assets/api.js';
import { arriving, held, isCloud, unitOf } from '/assets/slots.js';

const FROM_PRESET = 'as in the preset';
const UNIT_TITLES = {
  mm: 'millimetres', cm: 'centimetres', m: 'metres', kitti: 'KITTI, 1/256 m', tum: 'TUM, 1/5000 m',
  vkitti: 'Virtual KITTI, cm', ibims: 'iBims-1, 50 m / 65535', 'moge-log': 'MoGe, logarithmic',
};

export function completeRequest() {
  const options = {};
  for (const field of document.querySelectorAll('[data-option]')) if (field.value !== field.dataset.default) options[field.dataset.option] = field.value;
  return {
    prior: find('#prior-from').value, prior_kind: find('#prior-kind').value || null, unit: unitOf('sparse'),
    reference_unit: unitOf('reference'), uncertainty: find('#uncertainty').checked, options,
  };
}

/** Enable the button if nothing is missing and nothing is being computed. */
export function updateForm(busy) {
  const fromFile = find('#prior-from').value === 'file';
  const needed = { 'an image': !held.image, measurements: !held.sparse && find('#prior-from').value === 'none', 'a prior': fromFile && !held.prior };
  const missing = Object.keys(needed).filter((name) => needed[name]);
  if (isCloud() && !held.camera) missing.push('the camera of the point cloud');
  if (held.sparse && !isCloud() && find('#unit').value === 'other' && !unitOf('sparse')) missing.push('the metres per count');
  find('#go').disabled = missing.length > 0 || busy || arriving.size > 0; // without a file that arrives, the result would be another
  const own = find('#prior-from').selectedOptions[0]?.dataset.metric ? 'in the network’s own metres, which nothing confirms' : 'relative and has no unit';
  const relative = held.image && !held.sparse ? `Without measurements the depth is ${own}.` : '';
  const choice = needed['a prior'] ? ' A prior is a file, or a network under “Prior from”.' : '';
  find('#needs').textContent = missing.length ? `Still needed: ${missing.join(', ')}.${choice}` : relative;
  find('.slot[data-role="prior"]').classList.toggle('idle', !fromFile);
  find('#kind-field').hidden = !fromFile;
  const weights = find('#prior-from').selectedOptions[0]?.textContent.split(': downloads ')[1]; // the field may cut its text off
  find('#prior-note').hidden = !weights;
  find('#prior-note').textContent = weights ? `Complete downloads this network first: ${weights}.` : '';
  find('#forget').hidden = !Object.keys(held).length;
  if (isCloud() && !held.camera) find('#more-files').open = true;
}

/** Set the fields of the options to these values, and all others to their defaults. */
export function setOptions(values) {
  for (const field of document.querySelectorAll('[data-option]')) field.value = values[field.dataset.option] ?? field.dataset.default;
}

function optionField(option) {
  const id = `option-${option.name}`;
  const field = option.choices
    ? element('select', {}, ...option.choices.map((choice) => element('option', { value: choice, textContent: choice || FROM_PRESET })))
    : element('input', { type: 'text', placeholder: option.default || FROM_PRESET });
  Object.assign(field, { id, value: option.default });
  Object.assign(field.dataset, { option: option.name, default: option.default });
  const hint = element('span', { className: 'hint', textContent: option.help });
  return element('div', { className: 'option' }, element('label', { htmlFor: id, textContent: option.label }), field, hint);
}

export function fillForm(start, tryExample) {
  for (const select of [find('#unit'), find('#reference-unit')]) {
    select.append(element('option', { value: '', textContent: 'guess it' }));
    for (const unit of start.units) select.append(element('option', { value: unit, textContent: UNIT_TITLES[unit] ? `${unit}: ${UNIT_TITLES[unit]}` : unit }));
    select.append(element('option', { value: 'other', textContent: 'other: metres per count' }));
  }
  find('#prior-from').append(...start.priors.map(({ name, title, metric }) => {
    const option = element('option', { value: name, textContent: title });
    if (metric) option.dataset.metric = 'yes';
    return option;
  }));
  find('#prior-from').value = start.default_prior;
  find('#option-fields').append(...start.options.map(optionField));
  for (const example of start.examples) {
    const button = element('button', { className: 'example', type: 'button' }, element('img', { src: `/api/example/${example.name}`, alt: '' }), element('b', { textContent: example.title }), element('span', { textContent: example.text }));
    button.dataset.example = example.name;
    button.addEventListener('click', () => tryExample(example.name));
    find('#examples').append(button);
  }
  find('#privacy').textContent = start.local
    ? 'Your files stay on this computer, in a temporary folder that is removed when leadline studio ends.'
    : 'Your files go to a temporary folder of the computer that runs leadline studio and are removed when it ends.';
  if (TOUCH) for (const text of document.querySelectorAll('[data-touch]')) text.textContent = text.dataset.touch;
}

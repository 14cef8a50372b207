// What is said about a result besides its pictures: facts, notes, curves, files and recipes.

import { element, find } from '/assets/api.js';
import { COLOURS, chart, ends } from '/assets/charts.js';

const digits = (value, count = 3) => (value === null || value === undefined ? '–' : String(Number(value.toPrecision(count))));
export const metres = (value) => (value === null || value === undefined ? '–' : value < 0.1 ? `${digits(value * 100, 2)} cm` : `${digits(value)} m`);
export const percent = (value) => (value === null || value === undefined ? '–' : `${digits(value * 100, 2)} %`);

function fact(label, value, warn = '') {
  return element('div', { className: warn ? 'fact warn' : 'fact', title: warn }, element('span', { textContent: label }), element('b', { textContent: value }));
}

export function showFacts(told) {
  const facts = [
    fact('measured', told.measurements.toLocaleString('en')),
    fact('depth', `${digits(told.near, 2)}–${digits(told.far, 2)} m`),
    fact('exponent λ', digits(told.exponent)),
    fact('response off', metres(told.rmse)),
  ];
  if (told.uncertainty) facts.push(fact('uncertainty', `± ${metres(told.uncertainty.median)}`));
  if (told.scores) {
    facts.push(fact('error elsewhere', percent(told.scores.absrel)), fact('mean error', metres(told.scores.mae)));
    if (told.scores.normal_deg !== undefined) facts.push(fact('normals off', `${digits(told.scores.normal_deg)}°`));
  }
  find('#facts').replaceChildren(...facts);
  const notes = [];
  if (told.unit.guessed) notes.push([`The unit of the measurements was guessed: ${told.unit.unit}. Choose it if that is wrong.`, 'guess']);
  if (!told.fit_ok) notes.push([`Fit: ${told.fit}.`, 'guess']);
  if (!told.solve_ok) notes.push([`Solve: ${told.solve}.`, 'guess']);
  if (told.removed) notes.push([`${told.removed.toLocaleString('en')} measurements under the drawn mask were left out.`, '']);
  if (told.rejected) notes.push([`${told.rejected.toLocaleString('en')} measurements contradict all their neighbours and were left out.`, 'guess']);
  if (told.camera === 'assumed') notes.push(['No camera was given: the 3D view and the normals assume 60° across. Depth does not depend on it.', '']);
  notes.push(...told.notes.map((text) => [text, '']));
  find('#notes').replaceChildren(...notes.map(([textContent, className]) => element('li', { textContent, className })));
}

export function showTakeaway(told) {
  find('#downloads').replaceChildren(...Object.entries(told.downloads).map(([kind, text]) => element('a', {
    href: `/api/download/${told.revision}/${kind}`, textContent: text, download: '',
  })));
  const inputs = Object.entries(told.inputs); // of an example, so that the recipes can be run
  find('#inputs').hidden = !inputs.length;
  find('#inputs .files').replaceChildren(...inputs.map(([role, name]) => element('a', { href: `/api/input/${role}`, textContent: name, download: '' })));
  find('#recipe-command').textContent = told.recipe.command;
  find('#recipe-python').textContent = told.recipe.python;
}

/** The curves; `moved` is what an exponent chosen by hand gives, or null. */
export function showCurves(found, moved, pick) {
  showExponent(found, moved, pick);
  const gains = Object.entries(found.gains).filter(([, gain]) => gain.depth.at(-1) > gain.depth[0]); // none of a constant
  if (!gains.length) find('#chart-gain').replaceChildren(element('figcaption', { textContent: 'The prior is the same everywhere: there is no slope to draw.' }));
  else chart(find('#chart-gain'), {
    caption: 'Metres of depth per unit of prior, along depth.',
    x: { label: 'depth (m)' },
    y: { label: 'slope dS/dH', domain: ends(gains.flatMap(([, g]) => g.slope), [0.02, 0.98]) },
    series: gains.map(([name, gain]) => ({ kind: 'line', x: gain.depth, y: gain.slope, colour: COLOURS[name], label: name })),
  });
  const residual = found.residual;
  const held = residual.held_out;
  if (residual.at.length) {
    chart(find('#chart-residual'), {
      caption: held ? 'Result minus reference where nothing was measured: median and 16 to 84 %.' : 'Response minus measurement: median and 16 to 84 %.',
      x: { label: 'depth (m)' }, y: { label: 'metres' }, zero: true,
      series: [{ kind: 'band', x: residual.at, low: residual.low, high: residual.high }, { kind: 'line', x: residual.at, y: residual.median }],
    });
  } else find('#chart-residual').replaceChildren();
  if (found.scatter) {
    const { reference, predicted } = found.scatter;
    const domain = ends([...reference, ...predicted], [0.005, 0.995]);
    chart(find('#chart-scatter'), {
      caption: 'Result against reference where nothing was measured.',
      x: { label: 'reference (m)', domain }, y: { label: 'result (m)', domain },
      series: [{ kind: 'dots', x: reference, y: predicted }, { kind: 'line', x: domain, y: domain, colour: 'var(--soft)', dashed: true }],
    });
  } else find('#chart-scatter').replaceChildren();
}

export function showExponent(found, moved, pick) {
  const { profile, pairs, curve } = found;
  const held = profile.held_out.some(Number.isFinite);
  const least = Math.min(...profile.rmse.filter(Number.isFinite));
  const errors = [...profile.rmse, ...(held ? profile.held_out : [])].filter((v) => Number.isFinite(v) && v < 8 * least);
  const marks = [{ at: profile.chosen, label: `fit ${digits(profile.chosen)}` }];
  if (moved) marks.push({ at: moved.exponent, label: `λ ${digits(moved.exponent)}`, dashed: true, row: 1 });
  chart(find('#chart-profile'), {
    caption: 'Error of the best map at each exponent; click to try one.',
    x: { label: 'exponent λ' }, y: { label: 'error (m)', domain: [0, Math.max(...errors) * 1.1] }, marks, pick,
    series: [
      { kind: 'line', x: profile.exponents, y: profile.rmse, label: 'at the measurements (RMS)' },
      ...(held ? [{ kind: 'line', x: profile.exponents, y: profile.held_out, colour: COLOURS.depth, label: 'elsewhere (mean)' }] : []),
    ],
  });
  chart(find('#chart-pairs'), {
    caption: 'Measurements over the prior, and the response.',
    x: { label: 'prior (its own unit)', domain: ends(pairs.prior, [0.002, 0.998]) },
    y: { label: 'depth (m)', domain: ends(pairs.measured, [0.002, 0.998]) },
    series: [
      { kind: 'dots', x: pairs.prior, y: pairs.measured },
      { kind: 'line', x: curve.prior, y: curve.depth, colour: COLOURS.adaptive, label: 'fit' },
      ...(moved ? [{ kind: 'line', x: moved.curve.prior, y: moved.curve.depth, colour: COLOURS.disparity, dashed: true, label: 'by hand' }] : []),
    ],
  });
}

export function movedText(moved) {
  let text = `Off by ${metres(moved.rmse)} at the measurements (fit: ${metres(moved.fitted_rmse)}). The result changes by ${percent(moved.median_change)} at the median pixel.`;
  if (moved.scores) text += ` Error where not measured: ${percent(moved.scores.absrel)}.`;
  return text;
}

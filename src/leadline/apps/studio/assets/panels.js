// What is shown about a result besides its views: numbers, notes, charts, downloads and recipes.

import { TOUCH, element, find } from '/assets/api.js';
import { COLOURS, chart, ends } from '/assets/charts.js';

const digits = (value, count = 3) => (value === null || value === undefined ? '–' : String(Number(value.toPrecision(count))));
/** Centimetres below 10 cm, else metres; of two lengths side by side the second one is given in the unit of the first, `like`. */
export const metres = (value, like = value) => (value === null || value === undefined ? '–' : like < 0.1 ? `${digits(value * 100, 2)} cm` : `${digits(value)} m`);
export const percent = (value) => (value === null || value === undefined ? '–' : `${digits(value * 100, 2)} %`);

function fact(label, value, title) {
  return element('div', { className: 'fact', title }, element('span', { textContent: label }), element('b', { textContent: value }));
}

function showNotes({ notes }) {
  find('#notes').replaceChildren(...notes.map(({ text, warning }) => element('li', { textContent: text[0].toUpperCase() + text.slice(1), className: warning ? 'warning' : '' })));
}

export function showFacts(summary) {
  showNotes(summary);
  if (summary.relative) {
    const facts = [
      fact('depth', summary.near === null ? 'relative, no unit' : 'metres of the network', 'Measurements make it metric'),
      fact('prior', summary.prior, 'The network or the file'),
      fact('the prior holds', summary.holds.replace('_', ' '), 'What its numbers are'),
    ];
    for (const each of facts) each.classList.add('text');
    find('#facts').replaceChildren(...facts);
    return;
  }
  const { scores, uncertainty } = summary;
  const facts = [
    fact('measurements', summary.measurements.toLocaleString('en'), 'Measurements at pixels with a valid prior'),
    fact('depth range', `${digits(summary.near, 2)}–${digits(summary.far, 2)} m`, '1st to 99th percentile of the completed depth'),
    fact('exponent λ', digits(summary.exponent), 'Fitted exponent of the response'),
    fact('RMSE of the fit', metres(summary.rmse), 'Root mean square error of the response at the measurements, before the reconstruction'),
  ];
  if (uncertainty) facts.push(fact('median uncertainty', `± ${metres(uncertainty.median)}`, 'Median standard deviation of the depth'));
  if (scores) {
    facts.push(
      fact('error at unmeasured pixels', percent(scores.absrel), `Mean relative error (AbsRel) at ${scores.pixels.toLocaleString('en')} pixels with ground truth`),
      fact('mean absolute error', metres(scores.mae), 'At unmeasured pixels'),
    );
    if (scores.normal_deg !== null) facts.push(fact('median normal error', `${digits(scores.normal_deg)}°`, 'Median angle between normals of the result and of the ground truth'));
  }
  find('#facts').replaceChildren(...facts);
}

/** The list of downloads; `held` is the result at an exponent that was set by hand, or null. */
export function showDownloads(summary, held) {
  find('#downloads').replaceChildren(...Object.entries((held || summary).downloads).map(([kind, text]) => element('a', {
    href: `/api/download/${summary.revision}/${kind}`, textContent: text, download: '',
  })));
  find('#held-note').hidden = !held;
  find('#held-note').textContent = held ? `The command and the program below compute the depth at the fitted exponent, λ = ${summary.exponent.toFixed(2)}.` : '';
}

export function showRecipes(summary) {
  const inputs = Object.entries(summary.inputs); // the files of an example, with which the recipes can be run
  find('#inputs').hidden = !inputs.length;
  find('#inputs .files').replaceChildren(...inputs.map(([role, name]) => element('a', { href: `/api/input/${role}`, textContent: name, download: '' })));
  for (const [name, text] of Object.entries(summary.recipe)) {
    const pre = find(`#recipe-${name}`);
    pre.textContent = text;
    for (const part of [pre.parentElement, pre.parentElement.previousElementSibling]) part.hidden = !text; // its heading, too
  }
}

/** All charts; `held` is the result at an exponent that was set by hand, or null. */
export function showCurves(curves, held, pick) {
  showExponent(curves, held, pick);
  showGain(curves.gains);
  showResidual(curves.residual);
  if (curves.scatter) {
    const { reference, predicted } = curves.scatter;
    const domain = ends([...reference, ...predicted], [0.005, 0.995]);
    chart(find('#chart-scatter'), {
      caption: 'Result over ground truth at unmeasured pixels.',
      x: { label: 'ground truth (m)', domain }, y: { label: 'result (m)', domain },
      series: [{ kind: 'dots', x: reference, y: predicted }, { kind: 'line', x: domain, y: domain, colour: 'var(--soft)', dashed: true }],
    });
  } else find('#chart-scatter').replaceChildren();
}

function showGain(gains) {
  const curves = Object.entries(gains).filter(([, gain]) => gain.depth.at(-1) > gain.depth[0]); // a constant prior has no slope
  if (!curves.length) {
    find('#chart-gain').replaceChildren(element('figcaption', { textContent: 'The prior is constant, so the response has no slope.' }));
    return;
  }
  chart(find('#chart-gain'), {
    caption: 'Slope of the response over depth, with the exponent of each coordinate and the fitted one (adaptive).',
    x: { label: 'depth (m)' },
    y: { label: 'slope dS/dH', domain: ends(curves.flatMap(([, gain]) => gain.slope), [0.02, 0.98]) },
    series: curves.map(([name, gain]) => ({ kind: 'line', x: gain.depth, y: gain.slope, colour: COLOURS[name], label: name })),
  });
}

function showResidual(residual) {
  if (!residual.at.length) { find('#chart-residual').replaceChildren(); return; }
  chart(find('#chart-residual'), {
    caption: residual.held_out ? 'Error at unmeasured pixels over depth: median, 16th and 84th percentile.' : 'Response minus measurement over depth: median, 16th and 84th percentile.',
    x: { label: 'depth (m)' }, y: { label: 'error (m)' }, zero: true,
    series: [{ kind: 'band', x: residual.at, low: residual.low, high: residual.high }, { kind: 'line', x: residual.at, y: residual.median }],
  });
}

export function showExponent(curves, held, pick) {
  const { profile, pairs, curve } = curves;
  const scored = profile.held_out.some(Number.isFinite);
  const least = Math.min(...profile.rmse.filter(Number.isFinite));
  const errors = [...profile.rmse, ...(scored ? profile.held_out : [])].filter((value) => Number.isFinite(value) && value < 8 * least);
  const marks = [{ at: profile.chosen, label: `fit ${digits(profile.chosen)}` }];
  if (held) marks.push({ at: held.exponent, label: `λ ${digits(held.exponent)}`, dashed: true, row: 1 });
  chart(find('#chart-profile'), {
    caption: `Error of the best response at each exponent. ${TOUCH ? 'Tap' : 'Click'} to set an exponent.`,
    x: { label: 'exponent λ' }, y: { label: 'error (m)', domain: [0, Math.max(...errors) * 1.1] }, marks, pick,
    series: [
      { kind: 'line', x: profile.exponents, y: profile.rmse, label: 'RMSE at the measurements' },
      ...(scored ? [{ kind: 'line', x: profile.exponents, y: profile.held_out, colour: COLOURS.depth, label: 'mean error at unmeasured pixels' }] : []),
    ],
  });
  chart(find('#chart-pairs'), {
    caption: 'Measured depth over the prior, and the response.',
    x: { label: 'prior (its own unit)', domain: ends(pairs.prior, [0.002, 0.998]) },
    y: { label: 'depth (m)', domain: ends(pairs.measured, [0.002, 0.998]) },
    series: [
      { kind: 'dots', x: pairs.prior, y: pairs.measured },
      { kind: 'line', x: curve.prior, y: curve.depth, colour: COLOURS.adaptive, label: 'fit' },
      ...(held ? [{ kind: 'line', x: held.curve.prior, y: held.curve.depth, colour: COLOURS.disparity, dashed: true, label: 'set by hand' }] : []),
    ],
  });
}

export function heldText(held) {
  let text = `RMSE of the fit: ${metres(held.rmse)} (at the fitted exponent ${metres(held.fitted_rmse, held.rmse)}). Median change of the depth: ${percent(held.median_change)}.`;
  if (held.scores) text += ` Error at unmeasured pixels: ${percent(held.scores.absrel)}.`;
  return text;
}

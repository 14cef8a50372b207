// Requests to the server. Every change carries the session's token, and every error has a sentence to show.

const token = document.querySelector('meta[name="token"]').content;

/** Whether the main pointer is a finger: wording and hints depend on it. */
export const TOUCH = window.matchMedia('(pointer: coarse)').matches;

export const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
export const find = (selector) => document.querySelector(selector);

async function answer(response) {
  if (response.ok) return response.json();
  let text = `The server answered with status ${response.status}.`;
  try { text = (await response.json()).error || text; } catch { /* the answer has no sentence */ }
  throw new Error(text);
}

function unreachable() {
  return new Error('leadline studio does not answer. If it was stopped, start it again and reload this page.');
}

export async function get(path) {
  return answer(await fetch(path).catch(() => { throw unreachable(); }));
}

export async function post(path, request = {}) {
  const headers = { 'X-Leadline-Token': token, 'Content-Type': 'application/json' };
  const body = JSON.stringify(request);
  return answer(await fetch(path, { method: 'POST', headers, body }).catch(() => { throw unreachable(); }));
}

let lastSent = Promise.resolve();

/**
 * Run a job to its end. Returns its result, or null if it was cancelled or superseded by a newer job of its kind.
 * Jobs are sent one after another, because requests that overtake each other would make the older one the newer.
 */
export async function run(path, request, report = () => {}) {
  const sent = lastSent.then(() => post(path, request));
  lastSent = sent.catch(() => {});
  const { job } = await sent;
  for (;;) {
    const status = await get(`/api/job/${job}`);
    if (status.state === 'done') return status.result;
    if (status.state === 'superseded' || status.state === 'cancelled') return null;
    if (status.state === 'failed') throw new Error(status.error);
    report(status.state === 'queued' && status.position ? `Waiting for ${status.position} other job${status.position > 1 ? 's' : ''}` : status.stage || 'Working');
  }
}

/** Upload a file with XMLHttpRequest, because fetch does not report progress. */
export function upload(role, file, name, progress = () => {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('PUT', `/api/file/${role}?name=${encodeURIComponent(name)}`);
    request.setRequestHeader('X-Leadline-Token', token);
    request.upload.onprogress = (event) => progress(event.loaded / event.total);
    request.onerror = () => reject(new Error(`${name}: the upload failed. The file may be larger than the limit.`));
    request.onload = () => {
      let content = {};
      try { content = JSON.parse(request.responseText); } catch { /* handled below */ }
      if (request.status === 200) resolve(content);
      else reject(new Error(content.error || `${name}: the upload failed (status ${request.status}).`));
    };
    request.send(file);
  });
}

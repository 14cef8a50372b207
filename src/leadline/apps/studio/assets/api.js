// Talking to the server: every change carries the session's token, every error arrives as a sentence.

const token = document.querySelector('meta[name="token"]').content;

async function answer(response) {
  if (response.ok) return response.json();
  let text = `The server answered ${response.status}.`;
  try { text = (await response.json()).error || text; } catch { /* no sentence came with it */ }
  throw new Error(text);
}

function unreachable() {
  return new Error('leadline studio does not answer: was it ended? Start it again and reload this page.');
}

export async function get(path) {
  return answer(await fetch(path).catch(() => { throw unreachable(); }));
}

export async function post(path, wish = {}) {
  const request = { method: 'POST', headers: { 'X-Leadline-Token': token, 'Content-Type': 'application/json' } };
  return answer(await fetch(path, { ...request, body: JSON.stringify(wish) }).catch(() => { throw unreachable(); }));
}

/** Do work that takes time; null if it was superseded by newer work of the same kind. */
export async function run(path, wish, say = () => {}) {
  const { job } = await post(path, wish);
  for (;;) {
    const state = await get(`/api/job/${job}`);
    if (state.state === 'done') return state.outcome;
    if (state.state === 'superseded') return null;
    if (state.state === 'failed') throw new Error(state.error);
    if (state.state === 'queued' && state.position) say(`Waiting: ${state.position} before you`);
    else say(state.stage || 'Working');
  }
}

/** Upload by XMLHttpRequest, since fetch cannot say how far it is. */
export function upload(role, file, name, progress = () => {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('PUT', `/api/file/${role}?name=${encodeURIComponent(name)}`);
    request.setRequestHeader('X-Leadline-Token', token);
    request.upload.onprogress = (event) => progress(event.loaded / event.total);
    request.onerror = () => reject(new Error(`${name}: the upload was refused. Is it larger than the limit?`));
    request.onload = () => {
      let content = {};
      try { content = JSON.parse(request.responseText); } catch { /* below */ }
      if (request.status === 200) resolve(content);
      else reject(new Error(content.error || `${name}: the upload failed (${request.status}).`));
    };
    request.send(file);
  });
}

export const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
export const find = (selector) => document.querySelector(selector);

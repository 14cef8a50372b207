// The completed depth as points, drawn with WebGL and moved by mouse, touch or arrow keys.

const VERTEX = `
attribute vec3 place; attribute vec3 colour; uniform mat4 view; uniform float size; uniform float mark; uniform float lift; varying vec3 shade;
void main() {
  gl_Position = view * vec4(place, 1.0);
  gl_PointSize = mark > 0.0 ? mark : clamp(size * place.z / gl_Position.w, 1.0, 24.0); // as far apart as the pixels of the image there
  gl_Position.z -= lift * gl_Position.w;
  shade = colour;
}`;
/** Colours of what is drawn besides the depth. */
export const MARKS = { measured: [0.2, 0.85, 0.95], left_out: [1, 0.25, 0.3], camera: [0.75, 0.8, 0.85] };
const CAMERA_LENGTH = 0.16; // of the drawn camera, relative to the median depth
const FRAGMENT = 'precision mediump float; varying vec3 shade; void main() { gl_FragColor = vec4(shade, 1.0); }';

function program(gl) {
  const made = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  return made;
}

function product(a, b) { // column-major 4 x 4
  const made = new Float32Array(16);
  for (let c = 0; c < 4; c++) for (let r = 0; r < 4; r++) for (let k = 0; k < 4; k++) made[c * 4 + r] += a[k * 4 + r] * b[c * 4 + k];
  return made;
}

function median(values) {
  const sorted = Float32Array.from(values).sort();
  return sorted[sorted.length >> 1] || 1;
}

export class Cloud {
  constructor(canvas) {
    this.canvas = canvas;
    this.gl = canvas.getContext('webgl', { antialias: true, preserveDrawingBuffer: true });
    this.count = 0;
    if (!this.gl) return;
    this.program = program(this.gl);
    this.buffers = [];
    Object.assign(this, { size: 1, edges: false, measurements: false, camera: true }); // what the controls set
    this.#listen();
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  get works() { return Boolean(this.gl); }

  /** Load the answer of /api/points; `encode_points` describes it. */
  load(content, width, height) {
    const gl = this.gl;
    const length = new DataView(content).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 4, length)));
    const count = header.points;
    let offset = 4 + length;
    const places = new Float32Array(content, offset, count * 3);
    offset += count * 12;
    for (const buffer of [...this.buffers, this.measured, this.frame]) if (buffer) gl.deleteBuffer(buffer);
    this.buffers = [this.#buffer(places)];
    this.measured = this.#buffer(new Float32Array(content, offset, header.measurements * 3));
    offset += header.measurements * 12;
    header.colourings.forEach((_, i) => this.buffers.push(this.#buffer(new Uint8Array(content, offset + i * count * 3, count * 3))));
    Object.assign(this, { header, count, shown: 0 });
    const depths = [];
    this.extent = [0.01, 0.01];
    for (let i = 2; i < places.length; i += 3 * Math.max(1, Math.floor(count / 5000))) {
      depths.push(places[i]);
      for (const k of [0, 1]) this.extent[k] = Math.max(this.extent[k], Math.abs(places[i - 2 + k] / places[i]));
    }
    this.middle = median(depths);
    this.spacing = Math.sqrt((width * height) / Math.max(1, count)) / width;
    this.frame = this.#buffer(this.#cameraLines());
    this.reset();
  }

  reset() {
    Object.assign(this, { turn: -0.22, tilt: 0.14, away: this.middle * 1.2, slide: [0, 0] }); // from the side, which shows the depth
    this.draw();
  }

  /** Change what is drawn: shown (the number of a colouring), size, edges, measurements, camera. */
  set(changes) { Object.assign(this, changes); this.draw(); }

  /** The lines from the centre of projection to the corners of the image, and between these. */
  #cameraLines() {
    const corners = this.header.corners.map((ray) => ray.map((value) => value * CAMERA_LENGTH * this.middle));
    return new Float32Array(corners.flatMap((corner, i) => [0, 0, 0, ...corner, ...corner, ...corners[(i + 1) % 4]]));
  }

  draw() {
    const { gl, canvas } = this;
    if (!gl || !this.count || !canvas.clientWidth) return;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0.047, 0.063, 0.082, 1);
    gl.enable(gl.DEPTH_TEST);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.useProgram(this.program);
    gl.uniformMatrix4fv(gl.getUniformLocation(this.program, 'view'), false, this.#view(canvas.width / canvas.height));
    const size = this.spacing * canvas.height * 1.1 / this.extent[1];
    this.#uniforms({ size: size * this.size, mark: 0, lift: 0 });
    this.#attribute('place', this.buffers[0], gl.FLOAT, false);
    this.#attribute('colour', this.buffers[1 + this.shown], gl.UNSIGNED_BYTE, true);
    gl.drawArrays(gl.POINTS, 0, this.edges ? this.count : this.header.clean); // those at depth edges come last
    if (this.measurements) {
      const { measurements, left_out: leftOut } = this.header;
      this.#uniforms({ size, mark: (1.2 + 1.2 * this.size) * ratio, lift: 0.002 }); // in front of the surface that they lie on
      this.#marks(this.measured, gl.POINTS, MARKS.measured, 0, measurements - leftOut);
      this.#marks(this.measured, gl.POINTS, MARKS.left_out, measurements - leftOut, leftOut);
    }
    if (this.camera) this.#marks(this.frame, gl.LINES, MARKS.camera, 0, 16);
  }

  #uniforms(values) {
    for (const [name, value] of Object.entries(values)) this.gl.uniform1f(this.gl.getUniformLocation(this.program, name), value);
  }

  #marks(buffer, kind, colour, first, count) {
    const { gl } = this;
    const place = gl.getAttribLocation(this.program, 'colour');
    this.#attribute('place', buffer, gl.FLOAT, false);
    gl.disableVertexAttribArray(place);
    gl.vertexAttrib3f(place, ...colour);
    if (count) gl.drawArrays(kind, first, count);
  }

  #view(aspect) {
    const near = this.middle / 100, far = this.middle * 50;
    const tall = Math.min(1 / this.extent[1], aspect / this.extent[0]); // the view of the image's own camera fills the canvas
    const projection = [tall / aspect, 0, 0, 0, 0, tall, 0, 0, 0, 0, (far + near) / (near - far), -1, 0, 0, 2 * far * near / (near - far), 0];
    const [c, s, d, t] = [Math.cos(this.turn), Math.sin(this.turn), Math.cos(this.tilt), Math.sin(this.tilt)];
    const yaw = [c, 0, -s, 0, 0, 1, 0, 0, s, 0, c, 0, 0, 0, 0, 1];
    const pitch = [1, 0, 0, 0, 0, d, t, 0, 0, -t, d, 0, 0, 0, 0, 1];
    // Rotate about the middle of the scene; y down and z forward become y up and z towards the viewer.
    const centre = [1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, this.middle, 1];
    const back = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, this.slide[0], this.slide[1], -this.away, 1];
    return product(projection, product(back, product(pitch, product(yaw, centre))));
  }

  #buffer(values) {
    const made = this.gl.createBuffer();
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, made);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, values, this.gl.STATIC_DRAW);
    return made;
  }

  #attribute(name, buffer, kind, normalised) {
    const place = this.gl.getAttribLocation(this.program, name);
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, buffer);
    this.gl.enableVertexAttribArray(place);
    this.gl.vertexAttribPointer(place, 3, kind, normalised, 0, 0);
  }

  #zoom(factor) {
    this.away = Math.min(this.middle * 10, Math.max(this.middle * 0.05, this.away * factor));
    this.draw();
  }

  #pan(right, down) {
    const step = this.away / this.canvas.clientHeight;
    this.slide = [this.slide[0] + right * step, this.slide[1] - down * step];
    this.draw();
  }

  #orbit(right, down) {
    this.turn += right;
    this.tilt = Math.min(1.5, Math.max(-1.5, this.tilt + down));
    this.draw();
  }

  #listen() {
    const { canvas } = this;
    const fingers = new Map();
    canvas.tabIndex = 0;
    canvas.addEventListener('pointerdown', (event) => { canvas.setPointerCapture(event.pointerId); fingers.set(event.pointerId, event); });
    for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
    canvas.addEventListener('pointermove', (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const [right, down] = [event.clientX - before.clientX, event.clientY - before.clientY];
      if (fingers.size === 2) {
        const other = [...fingers.values()].find((finger) => finger.pointerId !== event.pointerId);
        const gap = (finger) => Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY);
        this.#zoom(gap(before) / Math.max(1, gap(event)));
        this.#pan(right / 2, down / 2); // the point between two fingers moves half as far as one of them
      } else if (event.shiftKey || event.buttons === 2) {
        this.#pan(right, down);
      } else {
        this.#orbit(right * 0.006, down * 0.006);
      }
      fingers.set(event.pointerId, event);
    });
    canvas.addEventListener('contextmenu', (event) => event.preventDefault());
    canvas.addEventListener('wheel', (event) => { event.preventDefault(); this.#zoom(Math.exp(event.deltaY * 0.001)); }, { passive: false });
    canvas.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
      if (step) { event.preventDefault(); this.#orbit(...step); }
      if (event.key === '+' || event.key === '-') this.#zoom(event.key === '+' ? 0.9 : 1.1);
    });
  }
}


// The choices of the first page that need a script: which settings a preset opens, and a brush for the mask of the first
// reference.
const presetOf = () => one("input[name=preset]:checked", maker);

function showPreset() {
  const preset = presetOf();
  if (!preset) return;
  one("[data-preset]").textContent = one("strong", preset.closest("label")).textContent;
  const opens = preset.dataset.opens.split(" ");
  const settings = all("[data-setting]", maker);
  for (const label of settings) {
    label.hidden = !opens.includes(label.dataset.setting);
    one("input", label).disabled = label.hidden;
  }
  const tuning = one(".tuning");
  if (tuning) tuning.hidden = settings.every((label) => label.hidden);
}

// The ratio that is chosen, where the list that has it is closed.
function showShape() {
  const other = one(".other-shapes input:checked", maker);
  one("[data-other-shape]").textContent = other ? `: ${other.value}` : "";
}

const brush = one("[data-brush]");
const canvas = brush && one("canvas", brush);
const pen = canvas?.getContext("2d", { willReadFrequently: true });
const PAINT = "#e0218a";
let before = [];
let last = null;
// The reference and the mask of strokes that Esc left behind.
let left = null;
const painting = () => `${own[0]} ${maker.elements.mask.value}`;
// Counts the openings of the brush: what one of them waited for is not for the next.
let opening = 0;

const isPainted = () => maker.elements.mask.value !== "";

// Shows what is painted on the first reference, and a button that paints on it.
function showMask() {
  const { mask, mask_of: masked } = maker.elements;
  if (!masked.value && isPainted()) masked.value = own[0] ?? "";
  if (isPainted() && masked.value !== own[0]) mask.value = masked.value = "";
  const takes = brush && (presetOf() ? "paints" in presetOf().dataset : true);
  for (const chip of all(".chip", maker)) {
    const paints = takes && chip.dataset.reference === own[0];
    let button = one("[data-paint]", chip);
    if (!paints) button?.remove();
    one(".mask", chip)?.remove();
    if (!paints) continue;
    if (!button) {
      button = Object.assign(document.createElement("button"), { type: "button", className: "plain" });
      button.dataset.paint = "";
      chip.append(button);
    }
    button.textContent = isPainted() ? brush.dataset.painted : brush.dataset.paint;
    if (isPainted()) {
      const shown = Object.assign(document.createElement("img"), { className: "mask", alt: "", src: thumbnailOf(mask.value) });
      one("img", chip).after(shown);
    }
  }
}

function setMask(reference) {
  maker.elements.mask.value = reference;
  maker.elements.mask_of.value = reference ? own[0] : "";
  showMask();
  maker.dispatchEvent(new Event("change"));
}

// The mask as it was painted before, in the colour of the brush.
async function loadMask() {
  const painted = new Image();
  painted.src = thumbnailOf(maker.elements.mask.value);
  await painted.decode().catch(() => {});
  if (!painted.naturalWidth) return;
  pen.drawImage(painted, 0, 0, canvas.width, canvas.height);
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < pixels.data.length; at += 4) {
    // The thumbnail is not exact: what is nearly black was not painted.
    pixels.data[at + 3] = pixels.data[at] < 32 ? 0 : pixels.data[at];
  }
  pen.putImageData(pixels, 0, 0);
  pen.globalCompositeOperation = "source-in";
  pen.fillStyle = PAINT;
  pen.fillRect(0, 0, canvas.width, canvas.height);
}

async function openBrush() {
  const thisOpening = opening += 1;
  const under = one("[data-under]", brush);
  under.src = thumbnailOf(own[0]);
  const isShown = await under.decode().then(() => true, () => false);
  if (thisOpening !== opening) return;
  if (!isShown) return say(brush.dataset.gone);
  one("[data-brush-refusal]").hidden = true;
  one("[data-brush-remove]").hidden = !isPainted();
  if (left !== painting()) {
    [canvas.width, canvas.height] = [under.naturalWidth, under.naturalHeight];
    before = [];
    last = null;
    if (isPainted()) await loadMask();
    if (thisOpening !== opening) return;
  }
  showRing();
  brush.showModal();
  canvas.focus();
}

const thickness = () => Math.max(canvas.width, canvas.height) * one("[data-brush-size]").value / 100;

// Paints or erases from the last point to this one, in pixels of the canvas.
function strokeTo(point) {
  const from = last ?? point;
  pen.globalCompositeOperation = one("[data-brush-erase]").checked ? "destination-out" : "source-over";
  Object.assign(pen, { strokeStyle: PAINT, lineWidth: thickness(), lineCap: "round", lineJoin: "round" });
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...point);
  pen.stroke();
  last = point;
}

function keepBefore() {
  before.push(pen.getImageData(0, 0, canvas.width, canvas.height));
  if (before.length > 20) before.shift();
}

// A grey picture of what is painted: white where the reference changes.
function paintedFile() {
  const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  const ink = copy.getContext("2d");
  ink.drawImage(canvas, 0, 0);
  ink.globalCompositeOperation = "source-in";
  ink.fillStyle = "#fff";
  ink.fillRect(0, 0, copy.width, copy.height);
  ink.globalCompositeOperation = "destination-over";
  ink.fillStyle = "#000";
  ink.fillRect(0, 0, copy.width, copy.height);
  return new Promise((made) => copy.toBlob(made, "image/png"));
}

// Where the keyboard paints.
function showRing() {
  const ring = one("[data-brush-ring]");
  ring.hidden = !last;
  if (!last) return;
  const size = `${100 * thickness() / canvas.width}%`;
  Object.assign(ring.style, { left: `${100 * last[0] / canvas.width}%`, top: `${100 * last[1] / canvas.height}%`, width: size });
}

async function finishMask(button) {
  const [reference, thisOpening] = [own[0], opening];
  button.disabled = true;
  const file = await paintedFile();
  const answer = await sendFile(file, null, `?mask_of=${encodeURIComponent(reference)}`);
  button.disabled = false;
  if (thisOpening !== opening) return;
  const notice = one("[data-brush-refusal]");
  notice.hidden = !answer.refusal;
  notice.textContent = answer.refusal ?? "";
  if (!answer.reference) return;
  before = [];
  setMask(answer.reference);
  chooseShapeOfReference();
  brush.close();
}

// The ratio that crops the least of the reference.
function chooseShapeOfReference() {
  const far = ({ value }) => {
    const [width, height] = value.split(":");
    return Math.abs(Math.log(width / height / (canvas.width / canvas.height)));
  };
  const nearest = all("input[name=shape]", maker).reduce((best, shape) => far(shape) < far(best) ? shape : best);
  takeOver({ shape: nearest }, ["shape"]);
}

if (maker) {
  maker.addEventListener("change", (event) => {
    if (event.target.name === "shape") showShape();
    if (event.target.name !== "preset") return;
    showPreset();
    showMask();
  });
  new MutationObserver((changes) => {
    if (changes.some((change) => change.target.matches(".chips"))) showMask();
  }).observe(one(".chips"), { childList: true });
  showShape();
  showPreset();
  showMask();
}

if (brush) {
  const pointOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height];
  };
  maker.addEventListener("click", (event) => {
    if (event.target.closest("[data-paint]")) openBrush();
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !event.isPrimary) return;
    canvas.setPointerCapture(event.pointerId);
    keepBefore();
    last = null;
    strokeTo(pointOf(event));
    one("[data-brush-ring]").hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!canvas.hasPointerCapture(event.pointerId) || !event.isPrimary) return;
    for (const part of event.getCoalescedEvents?.() ?? [event]) strokeTo(pointOf(part));
  });
  // By the keyboard: arrows move the brush, and paint with Shift; Space paints a point.
  canvas.addEventListener("keydown", (event) => {
    const [x, y] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], " ": [0, 0] }[event.key] ?? [];
    if (x === undefined) return;
    event.preventDefault();
    const step = thickness() / 2;
    const [oldX, oldY] = last ?? [canvas.width / 2, canvas.height / 2];
    const point = [Math.min(canvas.width, Math.max(0, oldX + x * step)), Math.min(canvas.height, Math.max(0, oldY + y * step))];
    if (event.key === " " || event.shiftKey) {
      keepBefore();
      strokeTo(point);
    }
    last = point;
    showRing();
  });
  one("[data-brush-undo]").addEventListener("click", () => {
    if (before.length) pen.putImageData(before.pop(), 0, 0);
  });
  one("[data-brush-done]").addEventListener("click", (event) => finishMask(event.currentTarget));
  one("[data-brush-remove]").addEventListener("click", () => {
    before = [];
    setMask("");
    brush.close();
  });
  one("[data-brush-cancel]").addEventListener("click", () => {
    before = [];
    brush.close();
  });
  brush.addEventListener("close", () => {
    opening += 1;
    left = before.length ? painting() : null;
    one("[data-paint]", maker)?.focus();
  });
}

"use strict";

// References beside the prompt: pictures of the account, which this script keeps in a list, and links, which stay in their
// text field. One hidden field sends both.
const MOST_REFERENCES = 4;
const MOST_BYTES = 20 * 1024 * 1024;
const DRAGGED = "text/x-tintype-reference";
const links = one("#references");
const files = one("input[type=file][name=file]");
const isOwn = (line) => /^(upload|result):/.test(line);
const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const uploading = new Map();
let own = [];
let sent = null;

const thumbnailOf = (reference) => {
  const [kind, id, number] = reference.split(/[:/]/);
  return kind === "upload" ? `/studio/uploads/${id}` : `/studio/tasks/${id}/pictures/${number}`;
};

function syncReferences() {
  if (!links) return;
  const urls = linesOf(links.value);
  sent.value = [...own, ...urls].join("\n");
  const count = own.length + urls.length + uploading.size;
  one("[data-count]").textContent = count ? `(${count}/${MOST_REFERENCES})` : "";
  const list = one(".chips");
  const references = [...own, ...uploading.keys()];
  for (const chip of all(".chip", list)) if (!references.includes(chip.dataset.reference)) chip.remove();
  for (const reference of references) {
    if (all(".chip", list).some((chip) => chip.dataset.reference === reference)) continue;
    const chip = one("[data-chip]").content.firstElementChild.cloneNode(true);
    const picture = document.createElement("img");
    picture.src = uploading.get(reference)?.url ?? thumbnailOf(reference);
    picture.alt = list.getAttribute("aria-label");
    chip.dataset.reference = reference;
    chip.ariaBusy = uploading.has(reference);
    one(".host", chip).replaceWith(picture);
    one("[data-drop-reference]", chip).hidden = false;
    list.append(chip);
  }
  const chips = references.map((reference) => all(".chip", list).find((chip) => chip.dataset.reference === reference));
  if (chips.some((chip, index) => list.children[index] !== chip)) list.append(...chips);
}

function roomForReference() {
  const room = own.length + linesOf(links.value).length + uploading.size < MOST_REFERENCES;
  if (!room) say(files.dataset.full);
  return room;
}

function addReference(reference) {
  one(".references").open = true;
  if (own.includes(reference) || !roomForReference()) return;
  say("");
  own.push(reference);
  syncReferences();
}

async function upload(file) {
  one(".references").open = true;
  if (!roomForReference()) return;
  if (file.size > MOST_BYTES) return say(files.dataset.large);
  say("");
  const name = `arriving:${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  const url = URL.createObjectURL(file);
  const stop = new AbortController();
  const arriving = sendFile(file, stop.signal);
  uploading.set(name, { url, stop, arriving });
  syncReferences();
  const answer = await arriving;
  const dropped = !uploading.delete(name);
  URL.revokeObjectURL(url);
  if (!dropped && answer.reference) own.push(answer.reference);
  if (!dropped && answer.refusal) say(answer.refusal);
  syncReferences();
}

// Sends one file. The promise never fails.
async function sendFile(file, signal, query = "") {
  const headers = { ...OF_SCRIPT, "x-proof": maker.elements.proof.value, "content-type": "application/octet-stream" };
  try {
    const answer = await fetch(`/studio/uploads${query}`, { method: "POST", body: file, headers, signal });
    if (answer.redirected) return void location.assign(answer.url) ?? {};
    const text = await answer.text();
    if (answer.ok) return { reference: text };
    const plain = answer.headers.get("content-type")?.startsWith("text/plain");
    return { refusal: plain ? text : files.dataset.broken };
  } catch {
    return { refusal: files.dataset.broken };
  }
}

// A task waits for the uploads that are on their way.
async function uploadsDone() {
  await Promise.all([...uploading.values()].map((upload) => upload.arriving));
  syncReferences();
}

const pictures = (list) => [...list].filter((file) => file.type.startsWith("image/"));

// Fills the form in with these parts of another one.
function takeOver(from, parts) {
  for (const part of parts) {
    if (part === "prompt") maker.elements.prompt.value = from.prompt.value;
    else if (part === "references") {
      own = linesOf(from.references.value).filter(isOwn);
      links.value = linesOf(from.references.value).filter((line) => !isOwn(line)).join("\n");
      one(".references").open ||= from.references.value !== "";
      maker.elements.mask.value = from.mask?.value ?? "";
      maker.elements.mask_of.value = maker.elements.mask.value && (own[0] ?? "");
      syncReferences();
      showMask();
    } else if (part === "settings") {
      for (const name of ["preset", "seed", "negative_prompt", "steps", "guidance_scale", "strength"]) {
        const [field, value] = [maker.elements[name], from[name]?.value ?? ""];
        if (!field) continue;
        // Setting the value of radio buttons never chooses an empty one.
        const option = field instanceof RadioNodeList && [...field].find((radio) => radio.value === value);
        if (option) option.checked = true;
        else if (!(field instanceof RadioNodeList)) field.value = value;
        if (value && name !== "preset") one(".tuning").open = true;
      }
      one("input[name=preset]:checked", maker)?.dispatchEvent(new Event("change", { bubbles: true }));
    } else {
      const choice = all(`input[name=${part}]`, maker).find((input) => input.value === from[part].value);
      if (!choice) continue;
      choice.checked = true;
      const others = choice.closest(".other-shapes");
      // While the page loads, nothing may move.
      if (others && document.readyState === "complete") others.open = true;
      choice.dispatchEvent(new Event("change", { bubbles: true }));
    }
  }
}

// Fills the form in with texts by the names of its fields.
function fillForm(fields) {
  const from = Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, { value: String(value) }]));
  const { board } = maker.elements;
  if ([...board?.options ?? []].some((option) => option.value === fields.board)) board.value = fields.board;
  takeOver(from, ["prompt", "shape", "n", "references", "settings"].filter((part) => part === "settings" || from[part]));
}

// The fields of the form that a download from a studio keeps in its PNG; null if it has none.
async function fieldsIn(file) {
  const bytes = await file.slice(0, 1 << 20).arrayBuffer();
  const view = new DataView(bytes);
  for (let at = 8; at + 12 <= bytes.byteLength; at += 12 + view.getUint32(at)) {
    const chunk = new TextDecoder().decode(bytes.slice(at + 4, at + 8 + view.getUint32(at)));
    const keyword = "iTXtTintype\0\0\0\0\0";
    if (!chunk.startsWith(keyword)) continue;
    try {
      return Object(JSON.parse(chunk.slice(keyword.length)));
    } catch {
      return null;
    }
  }
  return null;
}

// Says that the form was filled in, with a button that brings back what it was.
function offerBack(kept) {
  toast(files.dataset.filled);
  const back = Object.assign(document.createElement("button"), { type: "button", className: "quiet" });
  back.textContent = one("[data-undo]").content.querySelector("button").textContent;
  back.addEventListener("click", () => {
    fillForm(kept);
    maker.dispatchEvent(new Event("input"));
    one(".toast")?.remove();
  });
  one(".toast").append(" ", back);
}

// A picture with its details that is dropped on the prompt fills the form in; any other becomes a reference.
async function drop(dropped, onPrompt) {
  const known = pictures(dropped);
  for (const file of known) {
    const fields = onPrompt && await fieldsIn(file);
    if (!fields) {
      upload(file);
      continue;
    }
    const kept = Object.fromEntries(new FormData(maker));
    fillForm(fields);
    maker.dispatchEvent(new Event("input"));
    if (kept.prompt.trim() && kept.prompt !== maker.elements.prompt.value) offerBack(kept);
  }
  // Browsers give no type to pictures that they do not know, such as .heic.
  if (known.length < dropped.length) say(files.dataset.unreadable);
}

function remix(card, parts) {
  takeOver(one("form[data-make]", card).elements, parts);
  maker.scrollIntoView({ block: "nearest" });
  maker.elements.prompt.focus();
}

document.addEventListener("click", async (event) => {
  const target = event.target.closest?.("[data-use], [data-drop-reference], [data-remix]");
  if (!target || !maker || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (target.dataset.dropReference !== undefined) return dropReference(target.closest(".chip").dataset.reference);
  let from = target.closest(".card, .about");
  if (target.closest("[data-menu]")) {
    menu.hidePopover();
    from = await detailsOf(idOf(menu.tile));
  }
  if (isViewing()) leaveViewer();
  if (target.dataset.use) return addReference(target.dataset.use);
  if (target.closest("details.drop")) target.closest("details.drop").open = false;
  if (from) remix(from, target.dataset.remix.split(" "));
});

function dropReference(reference) {
  uploading.get(reference)?.stop.abort();
  uploading.delete(reference);
  own = own.filter((known) => known !== reference);
  syncReferences();
  one(".references summary").focus();
}

// The picture of a tile or a card that is dragged, as a reference.
document.addEventListener("dragstart", (event) => {
  const picture = event.target.closest?.(".tile .open, .card .open");
  const image = event.target.closest?.("img") ?? (picture && one("img", picture));
  const [, task, number] = image?.src.match(/\/studio\/tasks\/([^/]+)\/pictures\/(\d+)/) ?? [];
  if (!picture || !task) return;
  event.dataTransfer.setData(DRAGGED, `result:${task}/${number}`);
  event.dataTransfer.effectAllowed = "copyLink";
});

if (maker) {
  sent = document.createElement("input");
  sent.type = "hidden";
  sent.name = "references";
  maker.append(sent);
  own = linesOf(links.value).filter(isOwn);
  links.value = linesOf(links.value).filter((line) => !isOwn(line)).join("\n");
  links.removeAttribute("name");
  one(".chips").replaceChildren();
  syncReferences();

  links.addEventListener("input", syncReferences);
  files.addEventListener("change", () => {
    for (const file of files.files) upload(file);
    files.value = "";
  });
  document.addEventListener("paste", (event) => {
    const pasted = pictures(event.clipboardData?.files ?? []);
    // Word and Excel put a picture of copied text beside the text. A file that is copied has its name as text alone.
    const isText = ["text/plain", "text/html"].every((type) => event.clipboardData?.types.includes(type));
    if (!pasted.length || isText) return;
    event.preventDefault();
    pasted.forEach(upload);
  });
  const takes = (event) => [DRAGGED, "Files"].some((type) => event.dataTransfer?.types.includes(type));
  document.addEventListener("dragover", (event) => {
    if (!takes(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    maker.classList.add("dropping");
  });
  for (const name of ["dragleave", "dragend", "drop"]) {
    document.addEventListener(name, (event) => {
      if (name !== "dragleave" || !event.relatedTarget) maker.classList.remove("dropping");
    });
  }
  document.addEventListener("drop", (event) => {
    if (!takes(event)) return;
    event.preventDefault();
    const reference = event.dataTransfer.getData(DRAGGED);
    if (reference) return addReference(reference);
    drop([...event.dataTransfer.files], event.target === maker.elements.prompt);
  });
}

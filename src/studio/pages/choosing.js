
// What is chosen: tasks, each with the number of its pictures, or with the set of those that are chosen alone. The map is
// what counts; boxes and classes follow it.
const picked = new Map();
let anchor = null;
// Its class tells, which is quicker to ask than its pictures where thousands are chosen.
const picturesIn = (tile) => Number(/\bn([234])\b/.exec(tile.className)?.[1] ?? 1);
const boxOf = (tile) => one("input", tile);
const sizeOf = (part) => part.size ?? part;
// All pictures of a task, which may be one that no page has loaded.
const sizeOfTask = (task) => (tileOf(task) ? picturesIn(tileOf(task)) : sizeOf(picked.get(task) ?? 1));
const sum = (numbers) => [...numbers].reduce((total, number) => total + number, 0);

function setPicked(tile, on, part = picturesIn(tile)) {
  const box = boxOf(tile);
  if (!box) return;
  const isSome = on && part.size > 0;
  const showsSome = box.indeterminate;
  box.checked = on && !isSome;
  box.indeterminate = isSome;
  tile.classList.toggle("picked", box.checked);
  if (isSome || showsSome) {
    all(".open img", tile).forEach((image, index) => image.classList.toggle("picked", isSome && part.has(index + 1)));
  }
  if (on) picked.set(idOf(tile), part); else picked.delete(idOf(tile));
}

function count() {
  const form = one("[data-chosen]");
  if (!form) return;
  form.classList.toggle("some", picked.size > 0);
  one("[data-gallery]").classList.toggle("picking", picked.size > 0);
  const status = one("[data-chosen-count]");
  status.nothing ??= status.textContent;
  const parts = [...picked.values()];
  const pictures = sum(parts.map(sizeOf));
  status.textContent = pictures ? status.dataset.words.replace("0", pictures) : status.nothing;
  if (!picked.size && one("[data-all-found]")) one("[data-all-found]").hidden = true;
  const isSome = parts.some((part) => part.size);
  one("[data-chosen-alone]").hidden = !isSome;
  // Of a task that no page has loaded, the server knows whose it is.
  const isOthers = (task) => tileOf(task) && !("mine" in tileOf(task).dataset);
  const danger = one(".danger", form);
  danger.usual ??= danger.textContent;
  // With some pictures of a task, all of them go.
  danger.textContent = isSome ? danger.dataset.words.replace("0", sum([...picked.keys()].map(sizeOfTask))) : danger.usual;
  danger.hidden = !("owns" in one("[data-menu]").dataset) && [...picked.keys()].some(isOthers);
}

// The script sends what is chosen: also tasks that no page has loaded, and single pictures.
one("[data-chosen]")?.addEventListener("formdata", ({ formData }) => {
  for (const [task, part] of picked) {
    if (!part.size) formData.set(`task-${task}`, "1");
    else for (const number of part) formData.set(`picture-${task}/${number}`, "1");
  }
});

function unpick(task) {
  if (tileOf(task)) setPicked(tileOf(task), false);
  picked.delete(task);
}

function clear() {
  if (!picked.size) return;
  for (const task of [...picked.keys()]) unpick(task);
  anchor = null;
  count();
}

function pickAll(list) {
  for (const tile of list) setPicked(tile, true);
  count();
  offerFound();
}

// All tasks that the search finds, also those that no page has loaded.
let found = new Map();
async function offerFound() {
  const offer = one("[data-all-found]");
  if (!offer || !one("[data-older]")) return;
  const all = new Map();
  let query = new URL(location).searchParams;
  query.delete("before");
  while (query && all.size < offer.dataset.most) {
    query.set("ids", "1");
    const answer = await fetch(`/studio/gallery?${query}`, { headers: OF_SCRIPT }).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    const { ids, older } = await answer.json();
    for (const [task, pictures] of ids) all.set(task, pictures);
    query = older && new URLSearchParams(older);
  }
  found = all;
  offer.textContent = offer.dataset.words.replace("0", sum(found.values()));
  offer.hidden = !picked.size || found.size <= picked.size;
}

document.addEventListener("click", (event) => {
  const offer = event.target.closest?.("[data-all-found]");
  if (!offer) return;
  for (const [task, pictures] of found) {
    if (tileOf(task)) setPicked(tileOf(task), true); else picked.set(task, pictures);
  }
  offer.hidden = true;
  count();
});

// Chooses a tile or leaves it out; with Shift, all from the last one to this one.
function toggle(tile, isRange) {
  const from = isRange && anchor?.isConnected ? anchor : null;
  if (from && from !== tile) {
    const forward = from.compareDocumentPosition(tile) & Node.DOCUMENT_POSITION_FOLLOWING;
    for (let at = from; at; at = beyond(at, forward ? 1 : -1)) {
      setPicked(at, true);
      if (at === tile) break;
    }
  } else {
    setPicked(tile, !picked.has(idOf(tile)));
  }
  anchor = tile;
  count();
}

// Chooses a picture of a tile, or leaves it out.
function togglePicture(tile, number) {
  const [part, pictures] = [picked.get(idOf(tile)) ?? new Set(), picturesIn(tile)];
  const numbers = new Set(part.size === undefined ? Array.from({ length: part }, (_, index) => index + 1) : part);
  if (!numbers.delete(number)) numbers.add(number);
  setPicked(tile, numbers.size > 0, numbers.size < pictures ? numbers : pictures);
  anchor = tile;
  count();
}

// The number of the picture at which the pointer is; 0 for a click by the keyboard.
function pictureAt(tile, { clientX, clientY, detail }) {
  const under = detail ? document.elementsFromPoint(clientX, clientY) : [];
  return 1 + all(".open img", tile).findIndex((image) => under.includes(image));
}

// A tile that was fetched again is chosen as before.
function keepPicked(tile) {
  const part = picked.get(idOf(tile));
  if (part) setPicked(tile, true, part.size ? part : picturesIn(tile));
}

document.addEventListener("click", (event) => {
  const tile = event.target.closest?.("[data-gallery] > .tile");
  if (!tile || !boxOf(tile)) return;
  const isBox = event.target.matches("[data-pick]");
  const isPicture = event.target.closest(".open") && !event.ctrlKey && !event.metaKey;
  // While something is chosen, a click on a picture chooses, too.
  if (!isBox && !(isPicture && (picked.size || event.shiftKey))) return;
  if (isPicture) event.preventDefault();
  const number = isPicture && !event.shiftKey && pictureAt(tile, event);
  if (number) togglePicture(tile, number); else toggle(tile, event.shiftKey);
});

if (one("[data-clear]")) one("[data-clear]").hidden = false;
document.addEventListener("click", (event) => { if (event.target.closest?.("[data-clear]")) clear(); });
// The browser remembers boxes when a page is loaded again.
for (const box of all("[data-pick]:checked")) setPicked(box.closest(".tile"), true);
count();

// The size of the pictures, and the list of boards.
const sizer = one("[data-sizer]");
if (sizer) {
  const range = one("input", sizer);
  sizer.hidden = false;
  range.value = document.documentElement.dataset.size;
  range.addEventListener("input", () => {
    document.documentElement.dataset.size = range.value;
    ofBrowser.set("tintype-size", range.value);
  });
}

const side = one("[data-side]");
one("summary", side ?? document)?.addEventListener("click", () => {
  // On a phone it is closed whenever the page opens.
  if (!side || !matchMedia("(min-width: 56.26em)").matches) return;
  ofBrowser.set("tintype-boards", side.open ? "closed" : "open");
});
const find = one("[data-board-find]");
if (find) {
  find.hidden = false;
  find.addEventListener("input", () => {
    const text = find.value.trim().toLocaleLowerCase();
    for (const board of all("[data-board]")) board.hidden = !board.textContent.toLocaleLowerCase().includes(text);
  });
}


// Chosen tasks. The set of them is what counts; boxes and classes follow it.
const picked = new Set();
let anchor = null;

function setPicked(tile, on) {
  const box = one("[data-pick]", tile);
  if (!box) return;
  box.checked = on;
  tile.classList.toggle("picked", on);
  if (on) picked.add(idOf(tile)); else picked.delete(idOf(tile));
}

function count() {
  const form = one("[data-chosen]");
  if (!form) return;
  form.classList.toggle("some", picked.size > 0);
  one("[data-gallery]").classList.toggle("picking", picked.size > 0);
  const status = one("[data-chosen-count]");
  status.nothing ??= status.textContent;
  status.textContent = picked.size ? status.dataset.words.replace("0", picked.size) : status.nothing;
}

function clear() {
  if (!picked.size) return;
  for (const task of [...picked]) if (tileOf(task)) setPicked(tileOf(task), false);
  picked.clear();
  if (one("[data-all-found]")) one("[data-all-found]").hidden = true;
  anchor = null;
  count();
}

function pickAll(list) {
  for (const tile of list) setPicked(tile, true);
  count();
  offerFound();
}

// All tasks that the search finds, also those that no page has loaded.
let found = [];
async function offerFound() {
  const offer = one("[data-all-found]");
  if (!offer || !one("[data-older]")) return;
  const all = [];
  let query = new URL(location).searchParams;
  query.delete("before");
  while (query && all.length < offer.dataset.most) {
    query.set("ids", "1");
    const answer = await fetch(`/studio/gallery?${query}`, { headers: OF_SCRIPT }).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    const { ids, older } = await answer.json();
    all.push(...ids);
    query = older && new URLSearchParams(older);
  }
  found = all;
  offer.textContent = offer.dataset.words.replace("0", found.length);
  offer.hidden = !picked.size || found.length <= picked.size;
}

document.addEventListener("click", (event) => {
  const offer = event.target.closest?.("[data-all-found]");
  if (!offer) return;
  for (const task of found) if (tileOf(task)) setPicked(tileOf(task), true); else picked.add(task);
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

// A tile that was fetched again is chosen as before.
function keepPicked(tile) {
  if (picked.has(idOf(tile))) setPicked(tile, true);
}

document.addEventListener("click", (event) => {
  const tile = event.target.closest?.("[data-gallery] > .tile");
  if (!tile || !one("[data-pick]", tile)) return;
  const isBox = event.target.matches("[data-pick]");
  const isPicture = event.target.closest(".open") && !event.ctrlKey && !event.metaKey;
  // While something is chosen, a click on a picture chooses, too.
  if (!isBox && !(isPicture && (picked.size || event.shiftKey))) return;
  if (isPicture) event.preventDefault();
  toggle(tile, event.shiftKey);
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
    localStorage.setItem("tintype-size", range.value);
  });
}

const side = one("[data-side]");
one("summary", side ?? document)?.addEventListener("click", () => {
  // On a phone it is closed whenever the page opens.
  if (!side || !matchMedia("(min-width: 901px)").matches) return;
  localStorage.setItem("tintype-boards", side.open ? "closed" : "open");
});
const find = one("[data-board-find]");
if (find) {
  find.hidden = false;
  find.addEventListener("input", () => {
    const wanted = find.value.trim().toLocaleLowerCase();
    for (const board of all("[data-board]")) board.hidden = !board.textContent.toLocaleLowerCase().includes(wanted);
  });
}

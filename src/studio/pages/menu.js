
// The menu that all tiles share.
const menu = one("[data-menu]");

// The picture and the details of a task.
async function detailsOf(task) {
  const answer = await fetch(`/studio/tasks/${task}`, { headers: OF_SCRIPT }).catch(() => null);
  if (!answer) return void say(unanswered());
  if (!answer.ok || answer.redirected) return null;
  // The addresses of its forms count in this document.
  return document.adoptNode(one(".one", parse(await answer.text())));
}

async function makeAgain(task) {
  const details = await detailsOf(task);
  if (details) await make(one("form[data-make]", details));
}

async function copyLink(task, button) {
  const details = await detailsOf(task);
  // The menu stays open: without HTTPS, copying needs a place that can be seen.
  if (details) await copyBy(button, one(".card .open a", details).getAttribute("href"));
}

// Fills the menu in for a tile, before the browser opens it.
document.addEventListener("click", (event) => {
  const button = event.target.closest?.(".more");
  if (!button || !menu) return;
  const tile = button.closest(".tile");
  menu.tile = tile;
  menu.button = button;
  const task = idOf(tile);
  const isDone = tile.dataset.state === "completed";
  for (const item of all("[data-href]", menu)) item.href = item.dataset.href.replace("ID", task);
  for (const item of all("[data-done]", menu)) item.hidden = !isDone;
  const erases = one("[data-erase]", menu);
  if (erases) erases.hidden = !("owns" in menu.dataset || "mine" in tile.dataset);
  const get = one(".get", tile)?.href;
  if (get) one("[data-get]", menu).href = get;
  const link = one("[data-link]", menu);
  link.hidden = !isDone || get.includes("gallery.zip");
}, true);

menu?.addEventListener("toggle", (event) => {
  if (event.newState !== "open") return;
  const at = menu.button.getBoundingClientRect();
  const [width, height] = [menu.offsetWidth, menu.offsetHeight];
  const left = Math.max(8, Math.min(at.right - width, innerWidth - width - 8));
  const top = at.bottom + height + 8 < innerHeight ? at.bottom + 4 : Math.max(8, at.top - height - 4);
  Object.assign(menu.style, { left: `${left}px`, top: `${top}px` });
  one("a, button", menu).focus({ preventScroll: true });
});

menu?.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const items = all("a:not([hidden]), button:not([hidden])", menu);
  items.at((items.indexOf(document.activeElement) + step) % items.length).focus();
});

menu?.addEventListener("click", (event) => {
  const item = event.target.closest("a, button");
  if (!item) return;
  const task = idOf(menu.tile);
  const byLink = event.ctrlKey || event.metaKey || event.shiftKey;
  const did = (action) => {
    event.preventDefault();
    menu.hidePopover();
    action();
  };
  if ("again" in item.dataset) did(() => makeAgain(task));
  else if ("erase" in item.dataset) did(() => erase([task]));
  else if ("details" in item.dataset && !byLink) did(() => view(menu.tile));
  else if ("link" in item.dataset) copyLink(task, item);
  else if ("get" in item.dataset) menu.hidePopover();
  else if ("reference" in item.dataset && maker) did(() => addReference(`result:${task}/1`));
});
addEventListener("scroll", () => { if (menu?.matches(":popover-open")) menu.hidePopover(); }, { passive: true });

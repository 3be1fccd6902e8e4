
// Stars, deletion with undo, and the grid by keyboard.
// Returns the tasks with which it was done: a refusal ends it between two parts of a long list.
async function mark(change, tasks, fields = {}) {
  const proof = one('input[name="proof"]').value;
  const most = Number(one("[data-chosen]")?.dataset.most ?? 200);
  for (let at = 0; at < tasks.length; at += most) {
    const body = new URLSearchParams({ proof, ...fields });
    for (const task of tasks.slice(at, at + most)) body.set(`task-${task}`, "1");
    const request = { method: "POST", body, headers: OF_SCRIPT };
    const answer = await fetch(`/studio/gallery/${change}`, request).catch(() => null);
    if (answer?.redirected) return void location.assign(answer.url) ?? tasks.slice(0, at);
    if (answer?.ok) continue;
    say((answer && one("main p", parse(await answer.text()))?.textContent) || unanswered());
    return tasks.slice(0, at);
  }
  return tasks;
}

function showStar(task, starred) {
  for (const place of [tileOf(task), one(`.about[data-task="${task}"]`)]) {
    const button = place && one(".star", place);
    button?.setAttribute("aria-pressed", starred);
    button?.setAttribute("formaction", `/studio/gallery/${starred ? "unstar" : "star"}`);
  }
}

async function star(tasks, starred) {
  for (const task of await mark(starred ? "star" : "unstar", tasks)) showStar(task, starred);
}

// Deleted tasks wait where they were, hidden, until the page is left.
async function erase(tasks) {
  // The server leaves out what has not ended, among those that this page has not loaded.
  const hasEnded = (tile) => !tile || (!tile.hidden && tile.dataset.state !== "processing");
  const ended = tasks.filter((task) => hasEnded(tileOf(task)));
  const loaded = ended.map(tileOf).filter(Boolean);
  if (!ended.length) return;
  const last = loaded.at(-1);
  const sizes = ended.map((task) => [task, sizeOfTask(task)]);
  for (const tile of loaded) tile.hidden = true;
  hold();
  const next = last?.matches(".tile") ? beyond(last, 1) ?? beyond(last, -1) : null;
  if (isViewing()) viewAfter(next); else if (next) enter(next);
  const erased = await mark("delete", ended);
  // What was refused stays chosen.
  for (const task of erased) unpick(task);
  count();
  show(ended.slice(erased.length));
  if (!erased.length) return;
  const before = one(".undo");
  const undo = one("[data-undo]").content.firstElementChild.cloneNode(true);
  undo.tasks = new Map([...(before?.tasks ?? []), ...sizes.slice(0, erased.length)]);
  before?.remove();
  (isViewing() ? one("[data-viewer]") : one("main")).append(undo);
  countErased(undo);
  if (!next && !isViewing()) one("button", undo).focus();
}

// Shows the tiles of these tasks again.
function show(tasks) {
  for (const task of tasks) if (tileOf(task)) tileOf(task).hidden = false;
  if (tasks.length) hold();
}

function countErased(undo) {
  const words = one("[role=status]", undo);
  const { one: single, other } = words.dataset;
  const pictures = sum(undo.tasks.values());
  words.textContent = pictures === 1 ? single : other.replace("0", pictures);
}

async function restore(form) {
  const restored = await mark("restore", [...form.tasks.keys()]);
  show(restored);
  for (const task of restored) form.tasks.delete(task);
  if (form.tasks.size) countErased(form); else form.remove();
  const first = tileOf(restored[0]);
  if (first?.matches(".tile") && !isViewing()) enter(first);
}

async function doWithChosen(change, form) {
  const tasks = [...picked.keys()];
  if (!tasks.length) return;
  if (change === "delete") return erase(tasks);
  if (change === "star" || change === "unstar") return star(tasks, change === "star");
  const board = form.elements.board.value;
  const done = await mark(change, tasks, { board });
  if (change === "take" && new URL(location).searchParams.get("board") === board) {
    for (const task of done) tileOf(task)?.remove();
    hold();
  }
  // What was refused stays chosen.
  if (done.length < tasks.length) return;
  toast(one("[data-news]").dataset[change]);
  clear();
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  // The property of a button without this attribute is the address of the page.
  const action = event.submitter?.getAttribute("formaction") ?? form.action;
  const change = new URL(action, location).pathname.split("/").pop();
  if ("mark" in form.dataset) {
    event.preventDefault();
    const task = idOf(event.submitter.closest(".tile, [data-task]"));
    if (change === "delete") return erase([task]);
    if (change !== "cancel") return star([task], change === "star");
    form.action = action;
    const { refusal } = (await send(form, event.submitter)) ?? {};
    say(refusal);
    if (!refusal) await refresh(task);
  } else if ("put" in form.dataset) {
    event.preventDefault();
    const { refusal } = (await send(form, event.submitter)) ?? {};
    say(refusal);
    if (!refusal) toast(one("[data-news]").dataset.put);
  } else if ("restore" in form.dataset) {
    event.preventDefault();
    await restore(form);
  } else if ("chosen" in form.dataset) {
    if (change !== "gallery.zip") event.preventDefault();
    else if (sum([...picked.values()].map((part) => part.size ?? 1)) > form.dataset.most) [event.preventDefault(), say(form.dataset.tooMany)];
    if (change !== "gallery.zip") await doWithChosen(change, form);
  }
});

function enter(tile) {
  tile.classList.remove("held");
  one(".open", tile).focus({ preventScroll: true });
  tile.scrollIntoView({ block: "nearest" });
}

// The tile in the next row that is nearest to this one.
function inNextRow(tile, step) {
  const middle = tile.offsetLeft + tile.offsetWidth / 2;
  const away = (other) => Math.abs(other.offsetLeft + other.offsetWidth / 2 - middle);
  let next = tile;
  do next = beyond(next, step); while (next && next.offsetTop === tile.offsetTop);
  const row = next?.offsetTop;
  let best = next;
  for (; next && next.offsetTop === row; next = beyond(next, step)) if (away(next) < away(best)) best = next;
  return best;
}

function neighbour(tile, key) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (step) return beyond(tile, getComputedStyle(tile).direction === "rtl" ? -step : step);
  if (key === "Home") return tiles()[0];
  if (key === "End") return tiles().at(-1);
  return inNextRow(tile, key === "ArrowUp" ? -1 : 1);
}

document.addEventListener("keydown", (event) => {
  if (!one(".grid") || isViewing() || event.altKey || composes(event)) return;
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if ((event.ctrlKey || event.metaKey) && event.key === "a" && !typing && one("[data-chosen]")) {
    event.preventDefault();
    return pickAll(tiles());
  }
  if (event.ctrlKey || event.metaKey) return;
  if (event.key === "/" && !typing && one("#q")) {
    event.preventDefault();
    return one("#q").focus();
  }
  if (event.key === "Escape" && !one("[data-menu]:popover-open")) return typing ? event.target.blur() : clear();
  const tile = event.target.closest?.(".grid > .tile");
  if (!tile) {
    // From the top of the pictures every arrow leads to the first one in view; elsewhere up and down scroll the page.
    const leads = event.target.id === "pictures" ? /^Arrow/ : event.target === document.body ? /^Arrow(Left|Right)$/ : null;
    const first = leads?.test(event.key) && tiles().find((other) => other.getBoundingClientRect().bottom > 60);
    if (first) [event.preventDefault(), enter(first)];
    return;
  }
  if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) {
    const next = neighbour(tile, event.key);
    event.preventDefault();
    return next && enter(next);
  }
  if (!event.target.matches(".open")) return;
  const tasks = picked.size ? [...picked.keys()] : [idOf(tile)];
  const keys = {
    " ": () => toggle(tile, event.shiftKey),
    s: () => star(tasks, one(".star", tile)?.getAttribute("aria-pressed") !== "true"),
    Delete: () => erase(tasks),
  };
  // The pictures of a tile by their numbers.
  for (let number = 1; number <= picturesIn(tile); number++) keys[number] = () => togglePicture(tile, number);
  if (!keys[event.key] || !one(".star", tile)) return;
  event.preventDefault();
  // A key that is held down does it once.
  if (!event.repeat) keys[event.key]();
});


// Stars, deletion with undo, and the gallery by keyboard.
async function mark(change, tasks, fields = {}) {
  const proof = one('input[name="proof"]').value;
  const body = new URLSearchParams({ proof, ...fields });
  for (const task of tasks) body.set(`task-${task}`, "1");
  const answer = await fetch(`/studio/gallery/${change}`, { method: "POST", body, headers: OF_SCRIPT }).catch(() => null);
  if (answer?.ok && !answer.redirected) return true;
  say((answer && one("main p", parse(await answer.text()))?.textContent) || one("[data-news]").dataset.unanswered);
  return false;
}

function showStar(task, starred) {
  const button = one(".star", document.getElementById(`task-${task}`));
  if (!button) return;
  button.setAttribute("aria-pressed", starred);
  button.setAttribute("formaction", `/studio/gallery/${starred ? "unstar" : "star"}`);
}

async function star(tasks, starred) {
  if (await mark(starred ? "star" : "unstar", tasks)) for (const task of tasks) showStar(task, starred);
}

// The deleted cards wait where they were, hidden, until the page is left.
async function erase(tasks) {
  const ended = tasks.filter((task) => document.getElementById(`task-${task}`)?.dataset.state !== "processing");
  const next = document.getElementById(`task-${ended.at(-1)}`)?.nextElementSibling;
  if (!ended.length || !(await mark("delete", ended))) return;
  for (const task of ended) {
    const card = document.getElementById(`task-${task}`);
    card.hidden = true;
    const box = one("[data-pick]", card);
    if (box) box.checked = false;
  }
  one(".undo")?.remove();
  const undo = one("[data-undo]").content.firstElementChild.cloneNode(true);
  undo.tasks = ended;
  one(".grid, .one").before(undo);
  if (next?.matches("[data-task]")) enter(next); else one("button", undo).focus();
  count();
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  // The property of a button without this attribute is the address of the page.
  const action = event.submitter?.getAttribute("formaction") ?? form.action;
  const change = new URL(action, location).pathname.split("/").pop();
  if ("mark" in form.dataset) {
    event.preventDefault();
    const task = event.submitter.closest("[data-task]").dataset.task;
    if (change === "delete") await erase([task]); else await star([task], change === "star");
  } else if ("restore" in form.dataset) {
    event.preventDefault();
    if (!(await mark("restore", form.tasks))) return;
    for (const task of form.tasks) document.getElementById(`task-${task}`).hidden = false;
    enter(document.getElementById(`task-${form.tasks[0]}`));
    form.remove();
  } else if ("chosen" in form.dataset && change !== "gallery.zip") {
    event.preventDefault();
    const tasks = chosen();
    if (!tasks.length) return;
    if (change === "delete") return void erase(tasks);
    if (change === "star" || change === "unstar") return void star(tasks, change === "star");
    const board = form.elements.board.value;
    if (!(await mark(change, tasks, { board }))) return;
    if (change === "take" && new URL(location).searchParams.get("board") === board) {
      for (const task of tasks) document.getElementById(`task-${task}`).remove();
    }
    clear();
  }
});

const chosen = () => all("[data-pick]:checked").map((box) => box.closest("[data-task]").dataset.task);

function count() {
  const status = one("[data-chosen-count]");
  if (!status) return;
  status.nothing ??= status.textContent;
  const number = chosen().length;
  status.textContent = number ? status.dataset.words.replace("0", number) : status.nothing;
}

function clear() {
  for (const box of all("[data-pick]:checked")) box.checked = false;
  count();
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick]")) count();
});

// One card is in the order of the tab key: the one that was last used.
function enter(card) {
  for (const other of all('[data-gallery] > [tabindex="0"]')) other.tabIndex = -1;
  card.tabIndex = 0;
  card.focus();
}

function beside(card, key) {
  const cards = all("[data-gallery] > [data-task]:not([hidden])");
  const here = cards.indexOf(card);
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (step) return cards[here + (document.dir === "rtl" ? -step : step)];
  if (key === "Home") return cards[0];
  if (key === "End") return cards.at(-1);
  const column = cards.filter((other) => other.offsetLeft === card.offsetLeft);
  return column[column.indexOf(card) + (key === "ArrowUp" ? -1 : 1)];
}

document.addEventListener("keydown", (event) => {
  const grid = one("[data-gallery]");
  if (!grid || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    return one("#q").focus();
  }
  if (event.key === "Escape" && !one(".beside")) return typing ? event.target.blur() : clear();
  const card = event.target.closest?.("[data-gallery] > [data-task]");
  if (!card) return;
  if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) {
    const next = beside(card, event.key);
    event.preventDefault();
    return next && enter(next);
  }
  if (event.target !== card) return;
  const box = one("[data-pick]", card);
  const tasks = chosen().length ? chosen() : [card.dataset.task];
  const keys = {
    " ": () => { if (box) { box.checked = !box.checked; count(); } },
    s: () => star(tasks, one(".star", card)?.getAttribute("aria-pressed") !== "true"),
    Delete: () => erase(tasks),
    Enter: () => one(".facts a", card).click(),
  };
  if (!keys[event.key] || (!box && event.key !== "Enter")) return;
  event.preventDefault();
  keys[event.key]();
});

const first = one("[data-gallery] > [data-task]");
if (first) first.tabIndex = 0;
count();

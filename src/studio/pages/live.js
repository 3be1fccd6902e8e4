"use strict";

// Pages with pictures: older ones at their end, and tasks that change while the page is open.
const idOf = (element) => element.dataset.task ?? element.id.slice("task-".length);
const tileOf = (task) => document.getElementById(`task-${task}`);
const maker = one("form.maker");
const tiles = () => all(".grid > .tile:not([hidden])");

// The next tile in this direction.
function beyond(tile, step) {
  let next = tile;
  do next = step > 0 ? next.nextElementSibling : next.previousElementSibling;
  while (next && !next.matches(".tile:not([hidden])"));
  return next;
}

// Older pictures are fetched before the end of the page comes into view.
const watchEnd = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) showOlder(entry.target);
}, { rootMargin: "1600px" });
let olderPages = 0;
let arriving = null;

function showOlder(link = one("[data-older]")) {
  if (!link) return null;
  arriving ??= fetchOlder(link).finally(() => { arriving = null; });
  return arriving;
}

if (one(".grid")) new ResizeObserver(hold).observe(one(".grid"));

async function fetchOlder(link) {
  watchEnd.unobserve(link);
  const answer = await fetch(link.href, { headers: OF_SCRIPT }).catch(() => null);
  if (!answer?.ok || answer.redirected) {
    link.closest(".older").classList.add("broken");
    hold();
    return false;
  }
  const older = parse(await answer.text());
  for (const tile of all(".tile", older)) if (document.getElementById(tile.id)) tile.remove();
  prepare(older);
  const arrived = all(".tile", older);
  link.closest(".older").replaceWith(older);
  arrived.forEach(keepPicked);
  hold();
  olderPages += 1;
  return true;
}

function prepare(root) {
  setUp(root);
  startClocks(root);
  for (const link of all("[data-older]", root)) watchEnd.observe(link);
}

// A task as it is now, in place of the one on the page, or before all others.
function place(card) {
  if (!card) return;
  prepare(card);
  const old = document.getElementById(card.id);
  if (!old) {
    // Create shows one's own.
    if (one(".grid[data-own]") && !("mine" in card.dataset)) return;
    one(".grid")?.prepend(card);
    one("[data-empty]")?.remove();
    return hold();
  }
  const hadFocus = old.contains(document.activeElement);
  card.hidden = old.hidden;
  old.replaceWith(card);
  hold();
  if (hadFocus) (one(".open:is(a)", card) ?? one("a, button", card))?.focus();
  keepPicked(card);
  followTile(old, card);
  const news = one("[data-news]");
  const state = news.dataset[card.dataset.state];
  const isNews = state && old.dataset.state !== card.dataset.state;
  if (!isNews) return;
  news.textContent = `${state}: ${one(".prompt", card).textContent}`;
  notifyOf(card, news.textContent);
}

const fetching = new Map();
// Fetches a task; changes that come meanwhile cause one more fetch. The gallery shows what its filter found, and what
// was created on it.
async function refresh(id, isNew) {
  const gallery = one("[data-gallery]");
  if (!isNew && !tileOf(id) && (gallery || !one(".grid"))) return lookForFresh();
  if (fetching.has(id)) return void fetching.set(id, true);
  fetching.set(id, false);
  const url = `/studio/tasks/${encodeURIComponent(id)}${one(".grid") ? "?tile" : ""}${gallery ? "&gallery" : ""}`;
  const answer = await fetch(url, { headers: OF_SCRIPT }).catch(() => null);
  const part = answer?.ok && !answer.redirected && parse(await answer.text());
  const hasChanged = fetching.get(id);
  fetching.delete(id);
  if (part) {
    place(one(".tile, .card", part));
    showBalance(answer.headers.get("x-credits"));
  }
  if (hasChanged) refresh(id);
}

// Shows the tasks that the page has missed while it received nothing.
async function catchUp() {
  const grid = one(".grid:not([data-gallery])");
  const answer = grid && await fetch("/studio/older", { headers: OF_SCRIPT }).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const latest = parse(await answer.text());
  const missed = all(".tile", latest).filter((tile) => !document.getElementById(tile.id));
  if (all(".tile", latest).length > missed.length) return missed.reverse().forEach(place);
  // There may be more between these and those on the page.
  prepare(latest);
  grid.replaceChildren(latest);
}

let hasBegun = false;
function receive({ name, data }) {
  if (name === "here") return;
  if (name === "task") return refresh(data.id);
  if (name === "marks") return follow(data);
  if (name === "queue") return showPaused(data.paused);
  if (name === "progress") return showProgress(data);
  // The stream has begun, is broken off, has brought nothing yet, or was taken by another tab.
  showAway(name === "away" || name === "silence");
  if (name !== "away") all('[data-state="processing"]').forEach((card) => refresh(idOf(card)));
  if (name === "begin") showPaused(data.paused);
  else if (name !== "taken") return;
  if (hasBegun) [catchUp(), lookForFresh()];
  hasBegun = true;
}

function showProgress({ id, fraction, words, preview: number }) {
  const card = tileOf(id);
  for (const place of [card, one(`[data-instead][data-task="${id}"]`)]) {
    const bar = place && one("progress", place);
    if (!bar) continue;
    if (fraction === null) bar.removeAttribute("value"); else bar.value = fraction;
    one("[data-words]", place).textContent = words;
  }
  const preview = card && one("[data-preview]", card);
  if (number && preview) {
    preview.src = `${preview.dataset.preview}?${number}`;
    preview.hidden = false;
  }
}

// Opens the stream, and returns a function that closes it. The browser itself opens it again if the connection breaks,
// but not after an answer with an error, as a proxy gives while the server starts. Behind a proxy that gathers answers
// before it passes them on, nothing ever comes and nothing fails: the page says so, and asks from time to time.
function openStream(url, report) {
  let stream, retry;
  const silence = setInterval(() => report({ name: "silence" }), 10_000);
  const begin = () => {
    stream = new EventSource(url);
    for (const name of ["begin", "task", "progress", "marks", "queue"]) {
      stream.addEventListener(name, (event) => report({ name, data: JSON.parse(event.data) }));
    }
    stream.addEventListener("begin", () => clearInterval(silence));
    stream.addEventListener("error", () => {
      report({ name: "away" });
      if (stream.readyState === EventSource.CLOSED) retry = setTimeout(begin, 5_000);
    });
  };
  begin();
  return () => {
    clearInterval(silence);
    clearTimeout(retry);
    stream.close();
  };
}

// One tab of this browser holds the stream and tells the others, because a browser opens few connections to a server. A
// tab that somebody looks at takes it from one that answers nothing: phones suspend the others, with the lock.
function listen(url) {
  if (!navigator.locks) return listenWhileVisible(url);
  const tabs = new BroadcastChannel("tintype");
  const requested = performance.now();
  let close, doubt;
  tabs.onmessage = ({ data }) => {
    clearTimeout(doubt);
    if (data.name !== "who") receive(data);
    else if (close) tabs.postMessage({ name: "here" });
  };
  const hold = (options) => navigator.locks.request("tintype-stream", options, () => new Promise(() => {
    // This tab has waited for another one to close, whose last words it may have missed.
    hasBegun ||= performance.now() - requested > 1000;
    close = openStream(url, (news) => {
      tabs.postMessage(news);
      receive(news);
    });
  })).catch(() => {
    if (!close) return;
    close = close();
    hold({});
    receive({ name: "taken" });
  });
  const ask = () => {
    clearTimeout(doubt);
    if (document.hidden || close) return;
    tabs.postMessage({ name: "who" });
    doubt = setTimeout(() => { if (!close) hold({ steal: true }); }, 3_000);
  };
  document.addEventListener("visibilitychange", ask);
  hold({});
  ask();
}

// Without HTTPS browsers have no locks. Each tab has its own stream then, while somebody can see it.
function listenWhileVisible(url) {
  let close = null;
  const follow = () => {
    if (document.hidden) close = close?.(); else close ??= openStream(url, receive);
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

// Creates a task by a form, and shows it. Returns why it was refused, if it was.
async function make(form, submitter) {
  const sent = await send(form, submitter);
  if (!sent) return;
  say(sent.refusal);
  if (sent.refusal) return sent.refusal;
  showBalance(sent.credits);
  const tile = parse(sent.text).firstElementChild;
  if (isViewing() || one("[data-gallery]")) toast(one("[data-news]").dataset.started);
  if (one("[data-gallery]")) refresh(idOf(tile), true);
  else if (one(".grid")) place(tile);
  else location.assign("/studio");
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!("make" in form.dataset) && !("cancel" in form.dataset)) return;
  event.preventDefault();
  if (form.dataset.busy) return;
  form.dataset.busy = "yes";
  try {
    if (form === maker) {
      await uploadsDone();
      remember(form.elements.prompt.value);
    }
    if ("make" in form.dataset) {
      await make(form, event.submitter);
    } else {
      const { refusal } = (await send(form, event.submitter)) ?? {};
      say(refusal);
      if (!refusal) await refresh(idOf(form.closest("[data-task]")));
    }
  } finally {
    delete form.dataset.busy;
  }
});

// Whether the page before this one shows pictures. It still knows its place.
function cameFromGrid() {
  const before = window.navigation?.entries()[navigation.currentEntry.index - 1]?.url ?? document.referrer;
  return ["/studio", "/studio/gallery"].some((path) => before.split("?")[0] === location.origin + path);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("[data-back], .steps a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const isBack = "back" in link.dataset;
  if (isBack && !isViewing() && !cameFromGrid()) return;
  event.preventDefault();
  // The way back does not lead through every picture that was looked at.
  if (!isBack) location.replace(link.href); else if (isViewing()) leaveViewer(); else history.back();
});

// The keys of a picture's own page.
document.addEventListener("keydown", (event) => {
  if (!one(".one") || one(".grid") || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.repeat || event.target.matches("input, select, textarea, pre")) return;
  const isRtl = getComputedStyle(document.body).direction === "rtl";
  const links = { ArrowLeft: "[rel=prev]", ArrowRight: "[rel=next]", Escape: "[data-back]" };
  if (isRtl) [links.ArrowLeft, links.ArrowRight] = [links.ArrowRight, links.ArrowLeft];
  if (links[event.key]) one(links[event.key])?.click();
});

// The studio works without this script: it makes the pages live and saves reloads.
"use strict";

const OF_SCRIPT = { "x-requested-with": "studio" };
const one = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];

// The element of a fragment that this server has sent.
function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

function setUp(root) {
  for (const button of all("[data-copy]", root)) button.hidden = false;
  for (const link of all("[data-older]", root)) watchEnd.observe(link);
}

// Older pictures are fetched when the end of the page comes near.
const watchEnd = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) showOlder(entry.target);
}, { rootMargin: "800px" });

async function showOlder(link) {
  watchEnd.unobserve(link);
  const answer = await fetch(link.href, { headers: OF_SCRIPT });
  if (!answer.ok) return;
  const older = parse(await answer.text());
  for (const card of all("[data-task]", older)) if (document.getElementById(card.id)) card.remove();
  setUp(older);
  link.closest(".older").replaceWith(older);
}

// A card as it is now, in place of the one on the page, or before all others.
function place(card) {
  if (!card) return;
  setUp(card);
  startClocks(card);
  const old = document.getElementById(card.id);
  if (!old) {
    one(".grid")?.prepend(card);
    return one("[data-empty]")?.remove();
  }
  const focused = old === document.activeElement ? card : old.contains(document.activeElement) && one("a, button", card);
  const box = one("[data-pick]", card);
  if (box) [box.checked, card.tabIndex] = [one("[data-pick]", old)?.checked, old.tabIndex];
  old.replaceWith(card);
  if (focused) focused.focus();
  const news = one("[data-news]");
  const state = news.dataset[card.dataset.state];
  if (state && old.dataset.state !== card.dataset.state) news.textContent = `${state}: ${one(".prompt", card).textContent}`;
}

function showBalance(credits) {
  if (credits) one("[data-credits]").textContent = credits;
}

const fetching = new Map();
// Fetches a card; changes that come meanwhile cause one more fetch. The gallery shows what its filter found, and what was
// created on it.
async function refresh(id, isNew) {
  const gallery = one("[data-gallery]");
  if (gallery && !isNew && !document.getElementById(`task-${id}`)) return;
  if (fetching.has(id)) return void fetching.set(id, true);
  fetching.set(id, false);
  const url = `/studio/tasks/${encodeURIComponent(id)}${gallery ? "?gallery" : ""}`;
  const answer = await fetch(url, { headers: OF_SCRIPT }).catch(() => null);
  if (answer?.ok && !answer.redirected) {
    place(parse(await answer.text()).firstElementChild);
    showBalance(answer.headers.get("x-credits"));
  }
  const again = fetching.get(id);
  fetching.delete(id);
  if (again) refresh(id);
}

// Shows the tasks that the page has missed while it heard nothing.
async function catchUp() {
  const grid = one(".grid:not([data-gallery])");
  const answer = grid && await fetch("/studio/older", { headers: OF_SCRIPT }).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const latest = parse(await answer.text());
  const missed = all("[data-task]", latest).filter((card) => !document.getElementById(card.id));
  if (all("[data-task]", latest).length > missed.length) return missed.reverse().forEach(place);
  // There may be more between these and those on the page.
  setUp(latest);
  startClocks(latest);
  grid.replaceChildren(latest);
}

let hasBegun = false;
function hear({ name, data }) {
  if (name === "task") return refresh(data.id);
  if (name === "begin") {
    all('[data-state="processing"]').forEach((card) => refresh(card.dataset.task));
    if (hasBegun) catchUp();
    hasBegun = true;
    return;
  }
  const card = document.getElementById(`task-${data.id}`);
  const bar = card && one("progress", card);
  if (!bar) return;
  if (data.fraction === null) bar.removeAttribute("value"); else bar.value = data.fraction;
  one("[data-words]", card).textContent = data.words;
  const preview = one("[data-preview]", card);
  if (data.preview) {
    preview.src = `${preview.dataset.preview}?${data.preview}`;
    preview.hidden = false;
  }
}

// Opens the stream, and returns a function that closes it. The browser itself opens it again if the connection breaks, but
// not after an answer with an error, as a proxy gives while the server starts.
function openStream(url, tell) {
  let stream, again;
  const begin = () => {
    stream = new EventSource(url);
    for (const name of ["begin", "task", "progress"]) {
      stream.addEventListener(name, (event) => tell({ name, data: JSON.parse(event.data) }));
    }
    stream.addEventListener("error", () => {
      if (stream.readyState === EventSource.CLOSED) again = setTimeout(begin, 5_000);
    });
  };
  begin();
  return () => {
    clearTimeout(again);
    stream.close();
  };
}

// One tab of this browser holds the stream and tells the others, because a browser opens few connections to a server.
function listen(url) {
  if (!navigator.locks) return listenWhileVisible(url);
  const tabs = new BroadcastChannel("tintype");
  tabs.onmessage = (message) => hear(message.data);
  const asked = performance.now();
  navigator.locks.request("tintype-stream", () => new Promise(() => {
    // This tab has waited for another one to close, whose last words it may have missed.
    hasBegun ||= performance.now() - asked > 1000;
    openStream(url, (news) => {
      tabs.postMessage(news);
      hear(news);
    });
  }));
}

// Without HTTPS browsers have no locks. Each tab has its own stream then, while somebody can see it.
function listenWhileVisible(url) {
  let close = null;
  const follow = () => {
    if (document.hidden) close = close?.(); else close ??= openStream(url, hear);
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

async function send(form, submitter) {
  // Files have been sent already.
  const fields = [...new FormData(form, submitter)].filter(([, value]) => typeof value === "string");
  const body = new URLSearchParams(fields);
  const button = submitter || one("button", form);
  button.disabled = true;
  try {
    const answer = await fetch(form.action, { method: "POST", body, headers: OF_SCRIPT });
    if (answer.redirected) return void location.assign(answer.url);
    const text = await answer.text();
    if (answer.ok) return { text, credits: answer.headers.get("x-credits") };
    return { refusal: answer.status === 422 ? text : one("main p:not(.soft)", parse(text))?.textContent || text };
  } catch {
    return { refusal: one("[data-news]").dataset.unanswered };
  } finally {
    button.disabled = false;
  }
}

function say(refusal) {
  const notice = one("[data-refusal]");
  if (!notice) return;
  notice.hidden = !refusal;
  notice.textContent = refusal || "";
  if (refusal) notice.scrollIntoView({ block: "nearest" });
}

// A form that leads to another page is sent once.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if ("plain" in (event.submitter?.dataset ?? {})) return;
  setTimeout(() => { if (!event.defaultPrevented) for (const button of all("button", form)) button.disabled = true; });
});
// A page that the browser shows again from its memory can be sent again.
addEventListener("pageshow", () => { for (const button of all("button:disabled")) button.disabled = false; });

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!("make" in form.dataset) && !("cancel" in form.dataset)) return;
  event.preventDefault();
  if (form.dataset.busy) return;
  form.dataset.busy = "yes";
  if (form === maker) await uploadsDone();
  remember(form.elements.prompt?.value);
  const sent = await send(form, event.submitter);
  delete form.dataset.busy;
  if (!sent) return;
  say(sent.refusal);
  if (sent.refusal) return;
  showBalance(sent.credits);
  const card = parse(sent.text).firstElementChild;
  if (one("[data-gallery]")) refresh(card.dataset.task, true);
  else if (one(".grid") || "cancel" in form.dataset) place(card);
  else location.assign("/studio");
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.dataset.copy.startsWith("/") ? location.origin + button.dataset.copy : button.dataset.copy;
  await copy(text, button);
  // A button with a picture says so in the place for news.
  if (!button.dataset.copied) return void (one("[data-news]").textContent = one("[data-news]").dataset.copied);
  const words = button.textContent;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = words; }, 1500);
});

async function copy(text, button) {
  const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  if (done) return;
  // Without HTTPS browsers copy a selection alone.
  const field = Object.assign(document.createElement("textarea"), { value: text, className: "hidden" });
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  button.focus();
}

document.addEventListener("change", (event) => {
  const price = one("[data-price]");
  if (event.target.name === "n" && price) price.textContent = event.target.dataset.words;
});

// The prompts of this person in this browser, newest last. Nobody else finds them here, and nobody after signing out.
const HISTORY = `tintype-prompts-${document.body.dataset.person}`;
let at = null;
let draft = "";

function prompts() {
  try {
    return JSON.parse(localStorage.getItem(HISTORY)) ?? [];
  } catch {
    return [];
  }
}

function forgetPrompts(except) {
  const known = Object.keys(localStorage).filter((key) => key.startsWith("tintype-prompts") && key !== except);
  for (const key of known) localStorage.removeItem(key);
}
forgetPrompts(HISTORY);
document.addEventListener("submit", (event) => {
  if ("signOut" in event.target.dataset) forgetPrompts();
});

function remember(prompt) {
  if (!prompt) return;
  const kept = prompts().filter((known) => known !== prompt).slice(-99);
  localStorage.setItem(HISTORY, JSON.stringify([...kept, prompt]));
  at = null;
}

document.addEventListener("keydown", (event) => {
  const field = event.target;
  if (field.id !== "prompt") return;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    // A key that is held down creates one task.
    return event.repeat ? undefined : field.form.requestSubmit(one(".make"));
  }
  const atEdge = event.key === "ArrowUp" ? field.selectionEnd === 0 || at !== null : at !== null;
  if (!["ArrowUp", "ArrowDown"].includes(event.key) || !atEdge) return;
  const known = prompts();
  const next = (at ?? known.length) + (event.key === "ArrowUp" ? -1 : 1);
  if (next < 0 || next > known.length) return;
  event.preventDefault();
  if (at === null) draft = field.value;
  at = next === known.length ? null : next;
  field.value = known[next] ?? draft;
});

document.addEventListener("input", (event) => {
  if (event.target.id === "prompt") at = null;
});

setUp(document);
if (one("[data-live]")) listen(one("[data-live]").dataset.live);
// On a phone the pages' names are wider than the screen.
one(".bar nav [aria-current=page]")?.scrollIntoView({ inline: "center", block: "nearest" });

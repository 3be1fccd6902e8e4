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
function place(html) {
  const card = parse(html).firstElementChild;
  if (!card) return;
  setUp(card);
  startClocks(card);
  const old = document.getElementById(card.id);
  if (old) {
    const focused = old.contains(document.activeElement);
    old.replaceWith(card);
    if (focused) one("a, button", card)?.focus();
  } else if (one(".grid")) {
    one(".grid").prepend(card);
    one("[data-empty]")?.remove();
  }
}

const fetching = new Map();
// Fetches a card; changes that come meanwhile cause one more fetch.
async function refresh(id) {
  if (fetching.has(id)) return void fetching.set(id, true);
  fetching.set(id, false);
  const answer = await fetch(`/studio/tasks/${encodeURIComponent(id)}`, { headers: OF_SCRIPT }).catch(() => null);
  if (answer?.ok && !answer.redirected) place(await answer.text());
  const again = fetching.get(id);
  fetching.delete(id);
  if (again) refresh(id);
}

function hear({ name, data }) {
  if (name === "task") return refresh(data.id);
  if (name === "begin") return all('[data-state="processing"]').forEach((card) => refresh(card.dataset.task));
  const card = document.getElementById(`task-${data.id}`);
  const bar = card && one("progress", card);
  if (!bar) return;
  bar.value = data.fraction;
  const preview = one("[data-preview]", card);
  if (data.preview) {
    preview.src = `${preview.dataset.preview}?${data.preview}`;
    preview.hidden = false;
  }
  const words = one("[data-words]", card);
  if (data.steps) words.textContent = words.textContent.replace(/\d+\/\d+/, data.steps);
}

// One tab of this browser holds the stream and tells the others, because a browser opens few connections to a server.
function listen(url) {
  const tabs = new BroadcastChannel("tintype");
  tabs.onmessage = (message) => hear(message.data);
  navigator.locks.request("tintype-stream", () => new Promise(() => {
    const stream = new EventSource(url);
    for (const name of ["begin", "task", "progress"]) {
      stream.addEventListener(name, (event) => {
        const news = { name, data: JSON.parse(event.data) };
        tabs.postMessage(news);
        hear(news);
      });
    }
  }));
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
    return { refusal: "…" };
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
  if (form === maker) await uploadsDone();
  remember(form.elements.prompt?.value);
  const sent = await send(form, event.submitter);
  if (!sent) return;
  say(sent.refusal);
  if (sent.refusal) return;
  if (sent.credits) one("[data-credits]").textContent = sent.credits;
  if (one(".grid") || "cancel" in form.dataset) place(sent.text);
  else location.assign("/studio");
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.dataset.copy.startsWith("/") ? location.origin + button.dataset.copy : button.dataset.copy;
  await navigator.clipboard.writeText(text);
  const words = button.textContent;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = words; }, 1500);
});

document.addEventListener("change", (event) => {
  const price = one("[data-price]");
  if (event.target.name === "n" && price) price.textContent = event.target.dataset.words;
});

// The prompts of this browser, newest last.
const HISTORY = "tintype-prompts";
const prompts = () => JSON.parse(localStorage.getItem(HISTORY) || "[]");
let at = null;

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
    return field.form.requestSubmit(one(".make"));
  }
  const atEdge = event.key === "ArrowUp" ? field.selectionEnd === 0 || at !== null : at !== null;
  if (!["ArrowUp", "ArrowDown"].includes(event.key) || !atEdge) return;
  const known = prompts();
  const next = (at ?? known.length) + (event.key === "ArrowUp" ? -1 : 1);
  if (next < 0 || next > known.length) return;
  event.preventDefault();
  at = next === known.length ? null : next;
  field.value = known[next] ?? "";
});

setUp(document);
if (one("[data-live]")) listen(one("[data-live]").dataset.live);
// On a phone the pages' names are wider than the screen.
one(".bar nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

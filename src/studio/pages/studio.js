// The studio works without this script: it makes the pages live and saves reloads.
"use strict";

const OF_SCRIPT = { "x-requested-with": "studio" };
const one = (selector, from = document) => from.querySelector(selector);
const all = (selector, from = document) => [...from.querySelectorAll(selector)];

// Whether a key belongs to an input method, such as the Enter that confirms a Japanese word. Safari ends the composition
// before that key, and marks it by this code alone.
const composes = (event) => event.isComposing || event.keyCode === 229;

// What the browser keeps for this tab, or for all of them. It may refuse, by a setting or because the disk is full; the
// page works without.
function keeper(storage) {
  const tried = (use) => {
    try {
      return use(storage());
    } catch {
      return null;
    }
  };
  return {
    keys: () => tried(Object.keys) ?? [],
    get: (key) => tried((kept) => kept.getItem(key)),
    getJson: (key) => tried((kept) => JSON.parse(kept.getItem(key))),
    set: (key, value) => tried((kept) => kept.setItem(key, value)),
    remove: (key) => tried((kept) => kept.removeItem(key)),
  };
}
const ofTab = keeper(() => sessionStorage);
const ofBrowser = keeper(() => localStorage);

// The element of a fragment that this server has sent.
function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// As the reader's own kind of this language writes it: Americans and the British differ.
const LANGUAGE = document.documentElement.lang;
const LOCALE = navigator.languages.find((language) => language.startsWith(LANGUAGE)) || LANGUAGE;
const LOCAL_TIME = new Intl.DateTimeFormat(LOCALE, { dateStyle: "medium", timeStyle: "short" });

function setUp(root) {
  for (const button of all("[data-copy]", root)) button.hidden = false;
  for (const time of all("time[data-local]", root)) {
    delete time.dataset.local;
    time.title = time.textContent;
    time.textContent = LOCAL_TIME.format(new Date(time.dateTime));
  }
  for (const day of all("[data-day]", root)) {
    const style = day.matches("text") ? { day: "numeric", month: "short" } : { dateStyle: "medium" };
    day.textContent = new Date(day.dataset.day).toLocaleDateString(LOCALE, { ...style, timeZone: "UTC" });
  }
}

function showBalance(credits) {
  if (credits) one("[data-credits]").textContent = credits;
}

// What to say when no answer came.
function unanswered(makes = false) {
  const words = one("[data-news]").dataset;
  if (!navigator.onLine) return words.offline;
  return makes ? words.unansweredMake : words.unanswered;
}

// A form that makes a task names itself. It keeps the name for two minutes after a lost answer, so that sending it again
// makes and charges no other.
const names = new Map();

async function send(form, submitter) {
  // Files have been sent already.
  const fields = [...new FormData(form, submitter)].filter(([, value]) => typeof value === "string");
  const body = new URLSearchParams(fields);
  const [makes, content] = ["make" in form.dataset, String(body)];
  const name = names.get(content) ?? crypto.getRandomValues(new BigUint64Array(2)).join("-");
  names.delete(content);
  if (makes) body.set("once", name);
  const refused = (refusal, status) => {
    // Not found: the task of the lost answer is deleted by now.
    if (makes && status !== 404) {
      names.set(content, name);
      setTimeout(() => names.delete(content), 120_000);
    }
    return { refusal };
  };
  const button = submitter || one("button", form);
  const hadFocus = document.activeElement === button;
  button.disabled = true;
  try {
    const answer = await fetch(form.action, { method: "POST", body, headers: OF_SCRIPT });
    if (answer.redirected) return void location.assign(answer.url);
    const text = await answer.text();
    if (answer.ok) return { text, credits: answer.headers.get("x-credits") };
    const refusal = answer.status === 422 ? text : one("main p:not(.soft)", parse(text))?.textContent || text;
    return refused(refusal, answer.status);
  } catch {
    return refused(unanswered(makes));
  } finally {
    button.disabled = false;
    // A browser takes the focus from a disabled button, and the next Tab would begin at the top of the page.
    if (hadFocus && document.activeElement === document.body) button.focus();
  }
}

// A field that is not filled in as it should may lie in a closed part of its form, where no browser could show it.
document.addEventListener("invalid", (event) => {
  for (let part = event.target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
}, true);

// An open dialog has its own place for refusals, because it hides the page behind it.
function say(refusal) {
  const notice = one("dialog[open] [data-refusal]") ?? one("[data-refusal]");
  if (!notice) return;
  notice.hidden = !refusal;
  notice.textContent = refusal || "";
  if (refusal && !notice.matches(".banner")) notice.scrollIntoView({ block: "nearest" });
}
document.addEventListener("click", (event) => {
  const notice = event.target.closest?.(".banner[data-refusal]");
  if (notice) notice.hidden = true;
});

// Says for some seconds what was done, where one can see it.
function toast(words) {
  one(".toast")?.remove();
  const banner = Object.assign(document.createElement("p"), { className: "banner toast", textContent: words });
  banner.setAttribute("role", "status");
  (one("dialog[open]") ?? document.body).append(banner);
  setTimeout(() => banner.remove(), 4_000);
}

// On a narrow screen a menu scrolls, and shows where one is. scrollIntoView would make the next Tab go on from there.
for (const here of all("nav [aria-current]:not([aria-current=false])")) {
  const [menu, [box, around]] = [here.closest("nav"), [here, here.closest("nav")].map((part) => part.getBoundingClientRect())];
  menu.scrollLeft += box.left + box.width / 2 - around.left - around.width / 2;
}

// The menu of the person closes like any other.
document.addEventListener("click", (event) => {
  for (const menu of all(".person[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && one(".person[open]");
  if (!menu) return;
  event.preventDefault();
  menu.open = false;
  one("summary", menu).focus();
});

// Enter in a field of a form that asks first opens its question, and answers it there.
document.addEventListener("keydown", (event) => {
  const { form } = event.target;
  if (event.key !== "Enter" || composes(event) || !event.target.matches?.("input") || !form || !one("[name=ask]", form)) return;
  event.preventDefault();
  const question = one("details", form);
  if (question.contains(event.target)) return form.requestSubmit(one("button", question));
  question.open = true;
  one("input, button", question).focus();
});

// A form that leads to another page is sent once.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if ("plain" in (event.submitter?.dataset ?? {})) return;
  setTimeout(() => { if (!event.defaultPrevented) for (const button of all("button", form)) button.disabled = true; });
});
// A page that the browser shows again from its memory can be sent again.
addEventListener("pageshow", () => { for (const button of all("button:disabled:not([data-late])")) button.disabled = false; });

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copyBy(button, button.dataset.copy);
});

// Copies a text, or the whole address for a path, and says so.
async function copyBy(button, text) {
  await copy(text.startsWith("/") ? location.origin + text : text, button);
  // A button with a picture says so in the place for news.
  if (!button.dataset.copied) return void (one("[data-news]").textContent = one("[data-news]").dataset.copied);
  const words = button.textContent;
  if (words === button.dataset.copied) return;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = words; }, 1500);
}

async function copy(text, button) {
  const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  if (done) return;
  // Without HTTPS browsers copy a selection alone.
  const field = Object.assign(document.createElement("textarea"), { value: text, className: "hidden" });
  // Beside the button, because nothing outside of an open dialog takes a selection.
  button.after(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  button.focus();
}

// Forgets prompts and drafts, except those of one person.
function forgetPrompts(except) {
  const isOther = (key) => /^tintype-(prompts|draft)-/.test(key) && !(except && key.endsWith(except));
  for (const kept of [ofBrowser, ofTab]) for (const key of kept.keys().filter(isOther)) kept.remove(key);
}
forgetPrompts(`-${document.body.dataset.person}`);
document.addEventListener("submit", (event) => {
  if ("signOut" in event.target.dataset) forgetPrompts();
});
// What one tab forgets, the others forget too.
addEventListener("storage", (event) => {
  if (event.key?.startsWith("tintype-draft-") && event.newValue === null) ofTab.remove(event.key);
});

setUp(document);

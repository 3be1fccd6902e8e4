
document.addEventListener("change", (event) => {
  const price = one("[data-price]");
  if (event.target.name === "n" && price) price.textContent = event.target.dataset.words;
});

// The prompts of this person in this browser, newest last. Nobody else finds them here, and nobody after signing out.
const HISTORY = `tintype-prompts-${document.body.dataset.person}`;
let at = null;
let draft = "";

const prompts = () => ofBrowser.getJson(HISTORY) ?? [];

function remember(prompt) {
  if (!prompt) return;
  const kept = prompts().filter((known) => known !== prompt).slice(-99);
  ofBrowser.set(HISTORY, JSON.stringify([...kept, prompt]));
  at = null;
}

document.addEventListener("keydown", (event) => {
  const field = event.target;
  if (field.id !== "prompt" || composes(event)) return;
  if (event.key === "Enter" && !event.shiftKey) {
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


// The form as this person left it, in this browser: it survives a reload, other pages, and a session that expires.
const DRAFT = `tintype-draft-${document.body.dataset.person}`;

function keepDraft() {
  const fields = [...new FormData(maker)].filter(([name, value]) => typeof value === "string" && name !== "proof");
  try {
    localStorage.setItem(DRAFT, JSON.stringify(Object.fromEntries(fields)));
  } catch {
    // This browser keeps nothing for pages.
  }
}

function readDraft() {
  try {
    return JSON.parse(localStorage.getItem(DRAFT));
  } catch {
    return null;
  }
}

if (maker) {
  const kept = readDraft();
  // A link such as that of a remix brings words of its own.
  if (kept && !location.search && !maker.elements.prompt.value) {
    fillForm(kept);
  }
  maker.addEventListener("input", keepDraft);
  maker.addEventListener("change", keepDraft);
  // The references come and go without an event of their own.
  new MutationObserver(keepDraft).observe(one(".chips"), { childList: true });
}

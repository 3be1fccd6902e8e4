
// The form as this person left it, in this browser: it survives a reload, other pages, and a session that expires. Each
// tab keeps its own, and a new tab begins with the latest one of all tabs.
const DRAFT = `tintype-draft-${document.body.dataset.person}`;

function keepDraft() {
  const fields = [...new FormData(maker)].filter(([name, value]) => typeof value === "string" && name !== "proof");
  const draft = JSON.stringify(Object.fromEntries(fields));
  try {
    for (const kept of [sessionStorage, localStorage]) kept.setItem(DRAFT, draft);
  } catch {
    // This browser keeps nothing for pages.
  }
}

function readDraft() {
  try {
    // A person who signs out in another tab empties the store that all tabs share.
    if (!localStorage.getItem(DRAFT)) sessionStorage.removeItem(DRAFT);
    const draft = sessionStorage.getItem(DRAFT) ?? localStorage.getItem(DRAFT);
    // From now on it is this tab's own, whatever other tabs keep.
    if (draft) sessionStorage.setItem(DRAFT, draft);
    return JSON.parse(draft);
  } catch {
    return null;
  }
}

if (maker) {
  // A link such as that of a remix brings words of its own.
  const kept = location.search || maker.elements.prompt.value ? null : readDraft();
  if (kept) fillForm(kept);
  maker.addEventListener("input", keepDraft);
  maker.addEventListener("change", keepDraft);
  // The references come and go without an event of their own.
  new MutationObserver(keepDraft).observe(one(".chips"), { childList: true });
}

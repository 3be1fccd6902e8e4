
// The form as this person left it, in this browser: it survives a reload, other pages, and a session that expires. Each
// tab keeps its own, and a new tab begins with the latest one of all tabs.
const DRAFT = `tintype-draft-${document.body.dataset.person}`;

function keepDraft() {
  const fields = [...new FormData(maker)].filter(([name, value]) => typeof value === "string" && name !== "proof");
  const draft = JSON.stringify(Object.fromEntries(fields));
  for (const kept of [ofTab, ofBrowser]) kept.set(DRAFT, draft);
}

function readDraft() {
  // A person who signs out in another tab empties the store that all tabs share.
  if (!ofBrowser.get(DRAFT)) ofTab.remove(DRAFT);
  const draft = ofTab.getJson(DRAFT) ?? ofBrowser.getJson(DRAFT);
  // From now on it is this tab's own, whatever other tabs keep.
  if (draft) ofTab.set(DRAFT, JSON.stringify(draft));
  return draft;
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


// What other tabs and other people do. New pictures wait behind a button, so nothing on the page moves by itself.
const freshButton = one("[data-fresh]");
// The address of this page: the viewer shows that of a picture.
const HERE = new URL(location);
let freshTiles = [];
let lookingForFresh = null;

// Asks for the newest pictures of this search, every few seconds at most and only while somebody looks.
function lookForFresh() {
  if (!freshButton || HERE.searchParams.has("before")) return;
  lookingForFresh ??= whenSeen(3_000).then(async () => {
    lookingForFresh = null;
    const answer = await fetch(HERE, { headers: OF_SCRIPT }).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    // Ids sort by time: what is older than the last tile is on a page that was not loaded yet.
    const last = tiles().at(-1);
    const isFresh = (tile) => !document.getElementById(tile.id) && (!last || idOf(tile) > idOf(last));
    const newest = all(".tile", parse(await answer.text()));
    const fresh = newest.filter(isFresh);
    offerFresh(fresh, fresh.length === newest.length && newest.length > 40);
  });
}

// Offers these tiles; there may be more of them.
function offerFresh(fresh, isMore) {
  freshTiles = fresh;
  freshButton.textContent = freshButton.dataset.words.replace("0", `${fresh.length}${isMore ? "+" : ""}`);
  freshButton.hidden = !fresh.length;
}

// Waits so long, and until somebody looks at the page.
function whenSeen(delay) {
  return new Promise((done) => setTimeout(() => {
    if (!document.hidden) return done();
    document.addEventListener("visibilitychange", () => done(), { once: true });
  }, delay));
}

freshButton?.addEventListener("click", () => {
  freshButton.hidden = true;
  // There may be more between these and those on the page.
  if (freshButton.textContent.includes("+")) return void location.reload();
  for (const tile of freshTiles.reverse()) if (!document.getElementById(tile.id)) {
    prepare(tile);
    one(".grid").prepend(tile);
  }
  one("[data-none]")?.remove();
  hold();
  scrollTo({ top: 0, behavior: "instant" });
  if (tiles()[0]) enter(tiles()[0]);
});

// Follows what somebody did with pictures or boards.
function follow({ what, person, tasks }) {
  const isMine = person === document.body.dataset.person;
  if (what === "starred" || what === "unstarred") {
    if (isMine) for (const task of tasks) showStar(task, what === "starred");
    return;
  }
  // What was deleted or restored counts on its boards, too.
  showBoards();
  if (what === "boards") return;
  const found = tasks.map(tileOf).filter((tile) => tile?.matches(".tile"));
  if (what === "restored") {
    for (const tile of found) tile.hidden = false;
    if (isViewing() && seen.isGone && found.includes(seen.tile)) [say(""), showTask(seen.tile)];
    if (found.length < tasks.length) lookForFresh();
    return hold();
  }
  // What was deleted while it waited is not shown any more.
  const kept = freshTiles.filter((tile) => !tasks.includes(idOf(tile)));
  if (kept.length < freshTiles.length) offerFresh(kept, freshButton.textContent.includes("+"));
  const shown = found.filter((tile) => !tile.hidden);
  if (!shown.length) return;
  for (const tile of shown) [setPicked(tile, false), tile.hidden = true];
  count();
  hold();
  if (isViewing() && shown.includes(seen.tile)) showGone();
}

// The list of boards, as it is now. Entries that have not changed stay, and so do their covers.
let showingBoards = null;
function showBoards() {
  if (!one("[data-side]")) return;
  showingBoards ??= whenSeen(1_000).then(async () => {
    showingBoards = null;
    const answer = await fetch(HERE).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    const page = parse(await answer.text());
    const [now, then] = [one("[data-side] nav", page), one("[data-side] nav")];
    const nameOf = (link) => `${link.getAttribute("href")} ${link.textContent}`;
    const known = new Map(all("a", then).map((link) => [nameOf(link), link]));
    for (const link of all("a", now)) if (known.has(nameOf(link))) link.replaceWith(known.get(nameOf(link)));
    then.replaceChildren(...now.childNodes);
    one("[data-board-find]")?.dispatchEvent(new Event("input"));
    const [options, select] = [page, document].map((root) => one("#chosen select[name=board]", root));
    if (!options || !select) return;
    const chosen = select.value;
    select.replaceChildren(...options.childNodes);
    if (all("option", select).some((option) => option.value === chosen)) select.value = chosen;
  });
}

// The server is away only when it stays away: a proxy may close a stream at any time.
let away = null;
function showAway(isAway) {
  const banner = one("[data-away]");
  if (!banner) return;
  if (isAway) return void (away ??= setTimeout(() => { banner.hidden = false; }, 4_000));
  clearTimeout(away);
  away = null;
  banner.hidden = true;
}

function showPaused(isPaused) {
  const banner = one("[data-paused]");
  if (banner) banner.hidden = !isPaused;
}

// While nobody looks, the title counts pictures that are done.
const TITLE = document.title;
let unseen = 0;
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  unseen = 0;
  document.title = TITLE;
});

function notifyOf(tile, words) {
  if (!document.hidden || !("mine" in tile.dataset)) return;
  if (tile.dataset.state === "completed") document.title = `(${unseen += 1}) ${TITLE}`;
  if (!("Notification" in window) || Notification.permission !== "granted" || !wantsNotices()) return;
  try {
    // The tag keeps a second tab from saying the same.
    new Notification(words, { tag: tile.id, icon: one(".open img[src]", tile)?.src });
  } catch {
    // Browsers of phones let only service workers notify.
  }
}

// Notifications, for whoever asks for them in this browser.
const NOTICES = `tintype-notices-${document.body.dataset.person}`;
const wantsNotices = () => ofBrowser.get(NOTICES) === "yes";
const notices = one("[data-notices]");
if (notices && "Notification" in window && isSecureContext) {
  const box = one("input", notices);
  notices.hidden = Notification.permission === "denied";
  box.checked = wantsNotices() && Notification.permission === "granted";
  box.addEventListener("change", async () => {
    const isAllowed = box.checked && await Notification.requestPermission() === "granted";
    box.checked = isAllowed;
    if (isAllowed) ofBrowser.set(NOTICES, "yes"); else ofBrowser.remove(NOTICES);
  });
}

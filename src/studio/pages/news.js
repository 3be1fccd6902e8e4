
// What other tabs and other people do. New pictures wait behind a button, so nothing on the page moves by itself.
const freshButton = one("[data-fresh]");
let freshTiles = [];
let lookingForFresh = null;

// Asks for the newest pictures of this search, at most once a second.
function lookForFresh() {
  if (!freshButton || new URL(location).searchParams.has("before")) return;
  lookingForFresh ??= setTimeout(async () => {
    lookingForFresh = null;
    const answer = await fetch(location.href, { headers: OF_SCRIPT }).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    const newest = all(".tile", parse(await answer.text()));
    const known = newest.findIndex((tile) => document.getElementById(tile.id));
    freshTiles = known < 0 ? newest : newest.slice(0, known);
    const count = freshTiles.length === newest.length && newest.length > 1 ? `${newest.length}+` : freshTiles.length;
    freshButton.textContent = freshButton.dataset.words.replace("0", count);
    freshButton.hidden = !freshTiles.length;
  }, 1_000);
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
async function follow({ what, person, tasks }) {
  const isMine = person === document.body.dataset.person;
  if (what === "boards") return showBoards();
  if (what === "starred" || what === "unstarred") {
    if (isMine) for (const task of tasks) showStar(task, what === "starred");
    return;
  }
  const found = tasks.map(tileOf).filter((tile) => tile?.matches(".tile"));
  if (what === "restored") {
    for (const tile of found) tile.hidden = false;
    if (found.length < tasks.length) lookForFresh();
    return hold();
  }
  const shown = found.filter((tile) => !tile.hidden);
  if (!shown.length) return;
  for (const tile of shown) [setPicked(tile, false), tile.hidden = true];
  count();
  hold();
  if (isViewing() && shown.includes(seen.tile)) viewAfter(beyond(seen.tile, 1) ?? beyond(seen.tile, -1));
}

// The list of boards, as it is now.
async function showBoards() {
  if (!one("[data-side]")) return;
  const answer = await fetch(location.href).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const page = parse(await answer.text());
  for (const part of ["[data-side] nav", "#chosen select[name=board]"]) {
    const [now, then] = [one(part, page), one(part)];
    if (!now || !then) continue;
    const chosen = then.value;
    then.replaceChildren(...now.childNodes);
    if (chosen && all("option", then).some((option) => option.value === chosen)) then.value = chosen;
  }
}

// The server is away only when it stays away: a proxy may close a stream at any time.
let away = null;
function showAway(isAway) {
  const banner = one("[data-away]");
  if (!banner) return;
  clearTimeout(away);
  if (isAway) away = setTimeout(() => { banner.hidden = false; }, 4_000); else banner.hidden = true;
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

function tellOf(tile, words) {
  if (!document.hidden || !("mine" in tile.dataset)) return;
  if (tile.dataset.state === "completed") document.title = `(${unseen += 1}) ${TITLE}`;
  if (!("Notification" in window) || Notification.permission !== "granted" || !wantsNotices()) return;
  // The tag keeps a second tab from saying the same.
  new Notification(words, { tag: tile.id, icon: one(".open img[src]", tile)?.src });
}

// Notifications, for whoever asks for them in this browser.
const NOTICES = `tintype-notices-${document.body.dataset.person}`;
const wantsNotices = () => localStorage.getItem(NOTICES) === "yes";
const notices = one("[data-notices]");
if (notices && "Notification" in window && isSecureContext) {
  const box = one("input", notices);
  notices.hidden = Notification.permission === "denied";
  box.checked = wantsNotices() && Notification.permission === "granted";
  box.addEventListener("change", async () => {
    const isAllowed = box.checked && await Notification.requestPermission() === "granted";
    box.checked = isAllowed;
    if (isAllowed) localStorage.setItem(NOTICES, "yes"); else localStorage.removeItem(NOTICES);
  });
}

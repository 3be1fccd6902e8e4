
// The viewer: one picture over the grid, with the address of its own page.
const viewer = one("[data-viewer]");
const isViewing = () => Boolean(viewer?.open);

// What the viewer shows: a tile, its pictures, and the one of them that is large.
let seen = null;

function showPicture(at) {
  seen.at = at;
  const picture = seen.pictures[at];
  const large = one("[data-large]", viewer);
  allowZoom(false);
  large.hidden = !picture;
  if (!picture) return;
  large.alt = picture.alt;
  // The thumbnail is there at once.
  large.src = picture.thumbnail;
  const whole = new Image();
  whole.src = picture.url;
  whole.decode().then(() => {
    if (seen?.pictures[seen.at] !== picture) return;
    large.src = picture.url;
    allowZoom(true);
  }, () => {});
  setUp(picture.tools);
  one(".about .tools")?.replaceWith(picture.tools);
  all("button", one("[data-strip]")).forEach((button, index) => button.setAttribute("aria-current", index === at));
}

const isZoomed = () => one("[data-stage]").classList.contains("whole");

function zoom(on) {
  if (on && one("[data-zoom]").ariaDisabled === "true") return;
  one("[data-stage]").classList.toggle("whole", on);
  one("[data-zoom]").setAttribute("aria-pressed", on);
}

// A thumbnail has no original size: the zoom waits for the whole picture.
function allowZoom(allowed) {
  zoom(false);
  one("[data-zoom]").ariaDisabled = !allowed;
  one("[data-stage]").classList.toggle("loading", !allowed);
}

async function showTask(tile, fromEnd) {
  const task = idOf(tile);
  const shown = { tile, task, pictures: [], at: 0 };
  seen = shown;
  const large = one("[data-large]", viewer);
  const thumbnail = one(".open img[src]", tile);
  large.hidden = !thumbnail;
  allowZoom(false);
  if (thumbnail) [large.src, large.alt] = [thumbnail.src, one(".prompt", tile).textContent];
  for (const part of ["strip", "instead", "about"]) one(`[data-${part}]`).replaceChildren();
  for (const [button, step] of [[".before", -1], [".after", 1]]) {
    one(button, viewer).disabled = !beyond(tile, step) && !(step > 0 && one("[data-older]"));
  }
  const details = await detailsOf(task);
  if (seen !== shown) return;
  if (details === null) return void location.assign(`/studio/tasks/${task}`);
  if (!details) return;
  fill(shown, details);
  showPicture(fromEnd ? Math.max(0, shown.pictures.length - 1) : 0);
}

// Puts the parts of the picture's page into the viewer.
function fill(shown, details) {
  shown.pictures = all(".card .open", details).map((figure) => {
    const [link, image] = [one("a", figure), one("img", figure)];
    return { url: link.href, thumbnail: image.src, alt: image.alt, tools: one(".tools", figure) };
  });
  const about = one("[data-about]");
  about.className = "about details";
  about.dataset.task = shown.task;
  const copy = one("[data-copy-prompt]").content.firstElementChild.cloneNode(true);
  copy.dataset.copy = one(".card .prompt", details).textContent;
  const caption = one(".card .caption", details);
  const actions = one(".actions", caption);
  (one("[data-more]", actions) ?? actions).append(copy);
  actions.append(one(".actions > .danger", caption) ?? "");
  // A long one scrolls, also by the keyboard.
  one(".prompt", caption).tabIndex = 0;
  const instead = one("[data-instead]");
  instead.dataset.task = shown.task;
  instead.replaceChildren(...one(".card .words", details)?.childNodes ?? []);
  about.replaceChildren(caption, ...one("aside", details).childNodes);
  const place = Object.assign(document.createElement("div"), { className: "tools" });
  if (shown.pictures.length) one(".actions", caption).before(place);
  if (shown.pictures.length > 1) {
    one("[data-strip]").replaceChildren(...shown.pictures.map((picture, index) => {
      const button = Object.assign(document.createElement("button"), { type: "button" });
      button.append(Object.assign(new Image(), { src: picture.thumbnail, alt: picture.alt }));
      button.addEventListener("click", () => showPicture(index));
      return button;
    }));
  }
  setUp(about);
  startClocks(instead);
}

// The tile that the viewer shows was fetched again.
function followTile(old, tile) {
  if (isViewing() && seen?.tile === old) showTask(tile);
}

function view(tile) {
  if (!isViewing()) history.pushState(null, "", HERE);
  nameTask(tile);
  openViewer(tile);
}

// Gives the viewer the address of the picture's own page.
function nameTask(tile) {
  history.replaceState({ task: idOf(tile) }, "", `/studio/tasks/${idOf(tile)}`);
}

function openViewer(tile, fromEnd) {
  if (!viewer.open) {
    viewer.showModal();
    viewer.focus();
  }
  document.documentElement.classList.add("viewing");
  say("");
  showTask(tile, fromEnd);
}

// Somebody else deleted what the viewer shows. It stays, so that no key meets another picture.
function showGone() {
  seen.isGone = true;
  for (const tool of all(".actions *, .tools *, .share, form button", one("[data-about]"))) {
    if (tool.matches("button")) tool.disabled = true; else if (tool.matches("a, details")) tool.hidden = true;
  }
  say(viewer.dataset.gone);
}

// The tile after a deleted one.
function viewAfter(tile) {
  if (tile) view(tile); else leaveViewer();
}

async function step(by) {
  const next = seen.at + by;
  if (seen.pictures[next]) return showPicture(next);
  let tile = beyond(seen.tile, by);
  const from = seen;
  if (!tile && by > 0 && await showOlder()) tile = beyond(from.tile, by);
  if (!tile || seen !== from) return;
  nameTask(tile);
  openViewer(tile, by < 0);
  // Older ones arrive before they are wanted.
  if (by > 0 && !beyond(tile, 1)) showOlder();
}

function closeViewer() {
  if (!seen) return;
  const { tile } = seen;
  seen = null;
  const undo = one(".undo", viewer);
  if (undo) one("main").append(undo);
  viewer.close();
  document.documentElement.classList.remove("viewing");
  const place = tile.isConnected && !tile.hidden ? tile : beyond(tile, 1);
  if (place) enter(place);
}

// Closes it as the Back button does, so that the address is that of the page again.
function leaveViewer() {
  if (!seen) return;
  const wasPushed = history.state?.task;
  closeViewer();
  if (wasPushed) history.back();
}

// Esc leaves the zoom first.
function escapeViewer() {
  if (isZoomed()) zoom(false); else leaveViewer();
}

// Who leaves by a link or form of the viewer comes back to this page with the viewer open, not to the picture's own page.
function keepViewer(event) {
  const link = event.target.closest?.("a[href]:not([download], [target])");
  const staysHere = event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey;
  if (!staysHere && (link || event.type === "submit")) history.replaceState(history.state, "", HERE);
}

if (viewer) {
  addEventListener("click", (event) => { if (viewer.contains(event.target)) keepViewer(event); });
  addEventListener("submit", (event) => { if (viewer.contains(event.target)) keepViewer(event); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(".grid .open");
    if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    view(link.closest(".tile"));
  });
  viewer.addEventListener("cancel", (event) => {
    event.preventDefault();
    escapeViewer();
  });
  // The browser closes it by itself when it is asked twice.
  viewer.addEventListener("close", () => leaveViewer());
  viewer.addEventListener("click", (event) => {
    const button = event.target.closest("[data-step], [data-zoom], [data-close], [data-large]");
    if (!button) return;
    if (button.dataset.step) step(Number(button.dataset.step));
    else if ("close" in button.dataset) leaveViewer();
    else if (!swiped) zoom(!isZoomed());
  });
  document.addEventListener("keydown", (event) => {
    if (!viewer.open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, select, textarea")) return;
    const way = getComputedStyle(viewer).direction === "rtl" ? -1 : 1;
    const keys = {
      ArrowLeft: () => step(-way),
      ArrowRight: () => step(way),
      s: () => {
        const button = one(".star", seen.tile);
        if (button && !seen.isGone) star([seen.task], button.ariaPressed !== "true");
      },
      Delete: () => erase([seen.task]),
      Escape: escapeViewer,
    };
    if (!keys[event.key] || (event.repeat && !event.key.startsWith("Arrow"))) return;
    event.preventDefault();
    keys[event.key]();
  });
  // A swipe of a finger, which moves over a page that two fingers have made larger.
  let began = null;
  let swiped = false;
  const stage = one("[data-stage]");
  stage.addEventListener("touchstart", ({ touches }) => {
    began = touches.length === 1 && !isZoomed() && visualViewport.scale < 1.1 ? touches[0].clientX : null;
    swiped = false;
  }, { passive: true });
  stage.addEventListener("touchend", ({ changedTouches }) => {
    const moved = began === null ? 0 : changedTouches[0].clientX - began;
    swiped = Math.abs(moved) > 50;
    if (swiped) step(moved < 0 ? 1 : -1);
  }, { passive: true });
}

addEventListener("popstate", (event) => {
  // The page of a picture that was loaded at the address of the viewer.
  if (!viewer) return location.pathname === HERE.pathname || location.reload();
  const tile = event.state?.task && tileOf(event.state.task);
  if (tile) openViewer(tile); else closeViewer();
});

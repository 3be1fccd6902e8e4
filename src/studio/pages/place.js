
// The place on the page, for the Back button: the tile that was looked at last, or else the first in view, and how many
// older pages were loaded. On a page with a prompt only the former gets the focus back: the latter would take it from
// whoever goes on typing.
const grid = one(".grid");
const PLACE = `place:${location.pathname}${location.search}`;

async function comeBack() {
  const kept = ofTab.getJson(PLACE);
  const [{ type }] = performance.getEntriesByType("navigation");
  if (!kept || type === "navigate") return;
  for (let page = 0; page < kept.pages; page++) if (!(await showOlder())) break;
  const tile = tileOf(kept.task);
  if (!tile) return;
  tile.classList.remove("held");
  if (kept.looked || !one("#prompt")) one(".open", tile).focus({ preventScroll: true });
  scrollBy({ top: tile.getBoundingClientRect().top - kept.top, behavior: "instant" });
  // The viewer was left by one of its links.
  if (history.state?.task !== kept.task) return;
  nameTask(tile);
  openViewer(tile);
}

if (grid) {
  history.scrollRestoration = "manual";
  addEventListener("pagehide", () => {
    const inView = (tile) => {
      const box = tile?.getBoundingClientRect();
      return box && box.bottom > 60 && box.top < innerHeight;
    };
    const looked = seen?.tile ?? document.activeElement.closest(".grid > .tile");
    const tile = seen?.tile ?? (inView(looked) ? looked : tiles().find(inView));
    if (!tile) return;
    const { top } = tile.getBoundingClientRect();
    ofTab.set(PLACE, JSON.stringify({ task: idOf(tile), looked: tile === looked, top, pages: olderPages }));
  });
  comeBack();
}

prepare(document);
if (one("[data-live]")) listen(one("[data-live]").dataset.live);

// Runs before the pictures are there, so that nothing moves later.
"use strict";
{
  const root = document.documentElement;
  const side = document.querySelector("[data-side]");
  let kept = {};
  try {
    kept = { size: localStorage.getItem("tintype-size"), boards: localStorage.getItem("tintype-boards") };
  } catch {
    // This browser keeps nothing for pages.
  }
  root.classList.add("script");
  root.dataset.size = kept.size ?? "2";
  if (side && kept.boards !== "closed" && matchMedia("(min-width: 56.26em)").matches) side.open = true;
}

// The row before older pictures becomes another one when they arrive, so it is not visible until then, nor is the last
// row while the page itself arrives. An only row is: a search that finds little may ask for many pages.
function hold() {
  const isLoading = document.readyState === "loading";
  for (const tile of document.querySelectorAll(".grid > .held")) tile.classList.remove("held");
  if (!isLoading && !document.querySelector(".grid > .older:not(.broken)")) return;
  const shown = [...document.querySelectorAll(".grid > .tile:not([hidden])")];
  const row = shown.at(-1)?.offsetTop;
  if (!isLoading && row === shown[0]?.offsetTop) return;
  for (const tile of shown.reverse()) {
    if (tile.offsetTop !== row) return;
    tile.classList.add("held");
  }
}

requestAnimationFrame(function holdAgain() {
  hold();
  if (document.readyState === "loading") requestAnimationFrame(holdAgain);
});

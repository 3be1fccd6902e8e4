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
  if (side && kept.boards !== "closed" && matchMedia("(min-width: 901px)").matches) side.open = true;
}

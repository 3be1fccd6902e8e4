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
  try {
    // The form fills itself in later; its ratio may be one of the others.
    const draft = JSON.parse(localStorage.getItem(`tintype-draft-${document.body.dataset.person}`));
    const others = document.querySelector(".other-shapes");
    const shapes = others ? [...others.querySelectorAll("input")].map((input) => input.value) : [];
    if (!location.search && shapes.includes(draft?.shape)) others.open = true;
  } catch {
    // There is no draft.
  }
  if (side && kept.boards !== "closed" && matchMedia("(min-width: 901px)").matches) side.open = true;
}


// How long a task has been under way, by the clock of this browser from the moment at which the card came.
function startClocks(root) {
  for (const clock of all("[data-elapsed]", root)) {
    clock.begun = performance.now() - 1000 * clock.dataset.elapsed;
  }
}

setInterval(() => {
  for (const clock of all("[data-elapsed]")) {
    const seconds = Math.floor((performance.now() - clock.begun) / 1000);
    clock.textContent = clock.textContent.replace(/\d+/, seconds);
  }
}, 1000);

// Two pictures over each other.
const pair = one("[data-compare]");
if (pair) {
  const over = one("[data-compare-over]");
  const range = one("[data-compare-range]");
  one("[data-compare-controls]").hidden = false;
  over.addEventListener("click", () => {
    const on = pair.classList.toggle("over");
    over.ariaPressed = on;
    range.hidden = !on;
    if (on) one("input", range).focus();
  });
  one("input", range).addEventListener("input", (event) => pair.style.setProperty("--share", `${event.target.value}%`));
}

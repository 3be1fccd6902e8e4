
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
startClocks(document);

// Details of a picture beside the others, so that what is written in the form stays.
document.addEventListener("click", async (event) => {
  const link = event.target.closest?.(".grid .facts a");
  const pattern = one("[data-beside]");
  if (!link || !pattern || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const answer = await fetch(link.href);
  const details = answer.ok && one(".details", parse(await answer.text()));
  if (!details) return void location.assign(link.href);
  one(".beside")?.remove();
  const beside = pattern.content.firstElementChild.cloneNode(true);
  beside.append(...details.childNodes);
  setUp(beside);
  beside.opener = link;
  one("main").append(beside);
  one("button", beside).focus();
});

function closeBeside() {
  const beside = one(".beside");
  if (!beside) return;
  beside.remove();
  beside.opener?.focus();
}

document.addEventListener("click", (event) => {
  if (event.target.closest?.("[data-close-beside]")) closeBeside();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeBeside();
});

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

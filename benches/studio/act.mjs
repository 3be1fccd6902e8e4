// What happens when somebody acts: keys that are held down, the way back, and the selection.
import { CARD, gallery } from "./look.mjs";
import { newest, pause } from "./service.mjs";

// Loads older cards until there are this many, or no more.
async function load(page, count) {
  for (;;) {
    const [cards, more] = await page.evaluate((selector) => {
      scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
      return [document.querySelectorAll(selector).length, Boolean(document.querySelector("[data-older]"))];
    }, CARD);
    if (cards >= count || !more) return cards;
    await page.waitForFunction(([selector, before]) => document.querySelectorAll(selector).length > before
      || !document.querySelector("[data-older]"), [CARD, cards], { timeout: 60_000 });
  }
}

// Brings a card to the middle of the screen and returns its distance from the top.
async function bring(page, index) {
  await page.evaluate(([selector, at]) => {
    document.querySelectorAll(selector)[at].scrollIntoView({ block: "center", behavior: "instant" });
  }, [CARD, index]);
  // Not until its pictures have loaded: all that were scrolled past are before them.
  await pause(500);
  return page.evaluate(([selector, at]) => {
    const card = document.querySelectorAll(selector)[at];
    return { id: card.id, top: card.getBoundingClientRect().top };
  }, [CARD, index]);
}

// Where a card is, once it is back and has stopped moving, and how long that took; and the number of the first card in
// view.
async function where(page, id) {
  const began = performance.now();
  let [before, now, since] = ["", null, began];
  while (performance.now() - began < 60_000) {
    await pause(100);
    now = await page.evaluate(([selector, wanted]) => {
      const cards = [...document.querySelectorAll(selector)].filter((card) => !card.hidden);
      const first = cards.findIndex((card) => card.getBoundingClientRect().bottom > 60) + 1;
      return { top: document.getElementById(wanted)?.getBoundingClientRect().top ?? null, first };
    }, [CARD, id]).catch(() => null);
    if (JSON.stringify(now) !== before) since = performance.now();
    before = JSON.stringify(now);
    if (now && now.top !== null && performance.now() - since > 2_000) break;
  }
  return { ...now, seconds: (since - began) / 1000 };
}

function offset(card, { top, first, seconds }) {
  if (top === null) return `not on the page; card ${first} is`;
  return [Math.abs(top - card.top), `after ${seconds.toFixed(1)} s`];
}

async function focusFirst(page) {
  await page.evaluate((selector) => {
    const card = document.querySelector(selector);
    (card.querySelector("a.open:not([target])") ?? card).focus();
  }, CARD);
}

export async function held(bench) {
  const { place, page, owner, row } = bench;
  let before, deleted;
  await row("Tasks that the Delete key deletes, held for 0.8 s", { first: 23, goal: 1 }, async () => {
    await gallery(bench);
    before = await newest(place, owner);
    await focusFirst(page);
    const end = performance.now() + 800;
    await page.keyboard.down("Delete");
    await pause(250);
    while (performance.now() < end) {
      await page.keyboard.down("Delete");
      await pause(30);
    }
    await page.keyboard.up("Delete");
    await page.waitForLoadState("networkidle", { timeout: 3_000 }).catch(() => {});
    await pause(1_000);
    const after = new Set(await newest(place, owner));
    deleted = before.filter((id) => !after.has(id));
    if (!deleted.length) throw new Error("the key deleted nothing");
    return deleted.length;
  });
  await row("Of them, back after Undo", { goal: deleted?.length, least: true }, async () => {
    if (!deleted) throw new Error("nothing was deleted");
    await page.click(".undo button", { timeout: 3_000 });
    await pause(1_500);
    const after = new Set(await newest(place, owner));
    return deleted.filter((id) => after.has(id)).length;
  });
}

export async function back(bench) {
  const { page, row, count, place } = bench;
  const wanted = Math.min(528, count);
  const goal = { goal: 50, unit: " px" };
  await row(`Back from another page to card ${wanted}, offset`, { ...goal, firstText: "card 96" }, async () => {
    await gallery(bench);
    await load(page, wanted);
    const card = await bring(page, wanted - 1);
    await page.evaluate(() => { document.querySelector('.bar nav a[href="/studio"], a.brand').click(); });
    await page.waitForURL(`${place.url}/studio`);
    await page.goBack();
    return offset(card, await where(page, card.id));
  });
  await row("Back from the picture, offset", goal, async () => {
    const card = await bring(page, wanted - 1);
    await enter(page, card);
    await page.goBack();
    return offset(card, await where(page, card.id));
  });
  await row("Back from the picture's page after a reload, offset", goal, async () => {
    const card = await bring(page, wanted - 1);
    await enter(page, card);
    await page.reload();
    await page.goBack();
    return offset(card, await where(page, card.id));
  });
  await row("Esc from the viewer, offset", goal, async () => {
    const card = await bring(page, wanted - 1);
    await enter(page, card);
    await page.waitForSelector("dialog[open]", { timeout: 3_000 });
    await page.keyboard.press("Escape");
    const now = await where(page, card.id);
    if (await page.$("dialog[open]")) throw new Error("Esc left the viewer open");
    return offset(card, now);
  });
}

// Opens a card's picture as a click on it does.
async function enter(page, card) {
  const link = await page.$(`[id="${card.id}"] a.open`) ?? await page.$(`[id="${card.id}"] .facts a`);
  if (!link) throw new Error("the card has no link");
  await link.evaluate((element) => element.click());
  await page.waitForURL(/\/studio\/tasks\//, { timeout: 5_000 });
  await pause(500);
}

// How long a click on a picture takes until the whole picture is on the screen, which is wider than its thumbnail.
export async function viewer({ place, page, row }) {
  for (const [name, path] of [["Create", "/studio"], ["the gallery", "/studio/gallery"]]) {
    await row(`A click on a picture of ${name}, until the viewer shows it whole`, { unit: " ms" }, async () => {
      await page.goto(`${place.url}${path}`);
      const link = page.locator(`${CARD}[data-state=completed] a.open`).first();
      await link.waitFor({ timeout: 5_000 });
      const began = performance.now();
      await link.click();
      await page.waitForFunction(() => [...document.querySelectorAll("dialog[open] img")]
        .some((image) => image.naturalWidth > 640 && image.checkVisibility()), null, { timeout: 20_000 });
      return performance.now() - began;
    });
  }
}

// Waits for the next event of this kind, and notes the milliseconds until the first frame that shows what it did.
const arm = ([kind, key]) => {
  window.took = null;
  const hear = (event) => {
    if (key && event.key !== key) return;
    removeEventListener(kind, hear, true);
    requestAnimationFrame(() => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => { window.took = performance.now() - event.timeStamp; };
      port2.postMessage(0);
    });
  };
  addEventListener(kind, hear, true);
};

// Processor time that the page has taken, in milliseconds. Other programs do not lengthen it.
async function processor(page) {
  page.meter ??= await page.context().newCDPSession(page);
  await page.meter.send("Performance.enable", { timeDomain: "threadTicks" });
  const { metrics } = await page.meter.send("Performance.getMetrics");
  return 1000 * metrics.find(({ name }) => name === "TaskDuration").value;
}

async function timed(page, kind, act, key) {
  await page.evaluate(arm, [kind, key]);
  const before = await processor(page);
  await act();
  await page.waitForFunction(() => window.took !== null, null, { timeout: 30_000 });
  return [await page.evaluate(() => window.took), (await processor(page)) - before];
}

async function median(count, measure) {
  const found = [];
  for (let number = 0; number < count; number++) found.push(await measure());
  const [took, busy] = found.sort(([a], [b]) => a - b)[Math.floor(count / 2)];
  return [took, `${Math.round(busy)} ms of the processor`];
}

// Clicks on the box of a card, which may be visible only while the pointer is there.
async function pick(page, index, options = {}) {
  const card = await bring(page, index);
  const box = await page.$eval(`[id="${card.id}"] [data-pick]`, (input) => {
    const target = input.checkVisibility() ? input : input.closest("label");
    const { left, top, width, height } = target.getBoundingClientRect();
    return { x: left + width / 2, y: top + height / 2 };
  });
  await page.mouse.move(box.x, box.y);
  await pause(300);
  if (options.shift) await page.keyboard.down("Shift");
  const took = await timed(page, "click", () => page.mouse.click(box.x, box.y));
  if (options.shift) await page.keyboard.up("Shift");
  return took;
}

const chosen = (page) => page.$$eval("[data-pick]:checked", (boxes) => boxes.length);

async function clear(page) {
  await page.keyboard.press("Escape");
  await pause(300);
  if (await chosen(page)) await page.$$eval("[data-pick]:checked", (boxes) => boxes.forEach((box) => box.click()));
}

function scrollTo(page, share) {
  return page.evaluate((part) => {
    window.scrollTo({ top: part * document.documentElement.scrollHeight, behavior: "instant" });
  }, share);
}

export async function select(bench) {
  const { page, row, count } = bench;
  await gallery(bench);
  const cards = await load(page, count);
  const goal = { goal: 100, unit: " ms" };
  await row(`A key that does nothing beside ${cards} cards, until painted`, { unit: " ms" }, () => median(5, () =>
    timed(page, "keydown", () => page.keyboard.press("q"), "q")));
  await row(`A click on one of ${cards} cards, until painted`, { ...goal, firstText: "616 to 696 ms" }, () =>
    median(5, async () => {
      const took = await pick(page, Math.floor(cards / 2));
      await clear(page);
      return took;
    }));
  await row(`Shift from the first card to the ${cards}th, until painted`, goal, () => median(3, async () => {
    await pick(page, 0);
    const took = await pick(page, cards - 1, { shift: true });
    const found = await chosen(page);
    await clear(page);
    if (found < cards - 10) throw new Error(`it chose ${found} cards`);
    return took;
  }));
  await row("Ctrl+A, until painted", goal, () => median(3, async () => {
    await bring(page, Math.floor(cards / 2));
    const took = await timed(page, "keydown", () => page.keyboard.press("Control+a"), "a");
    const found = await chosen(page);
    await clear(page);
    if (found < cards - 10) throw new Error(`it chose ${found} cards`);
    return took;
  }));
  const bar = { firstText: "-2760 px", within: [0, 900], unit: " px" };
  await row("Top of the bar for the selection, at worst, in a screen of 900 px", bar, async () => {
    await pick(page, Math.floor(cards / 2));
    const places = [];
    for (const share of [0, 0.5, 1]) {
      await scrollTo(page, share);
      await pause(300);
      places.push(await page.$eval("[data-chosen]", (element) => element.getBoundingClientRect().top));
    }
    await clear(page);
    return places.find((top) => top < 0 || top > 900) ?? places[0];
  });
}

// What a page shows, and how soon: its pictures, its weight, and what moves on it by itself.
import { command, createTask, percentile, send, settled, times } from "./service.mjs";

// Cards of every version.
export const CARD = '.grid > article[id^="task-"]';

// Waits until every picture that has begun to load is there.
export async function loaded(page) {
  await page.waitForFunction(() => [...document.images].every((image) => {
    const { top, bottom } = image.getBoundingClientRect();
    return image.complete || !image.checkVisibility() || bottom < 0 || top > innerHeight;
  }), null, { timeout: 60_000 });
}

export async function gallery({ place, page }, width = 1440, height = 900) {
  await page.setViewportSize({ width, height });
  await page.goto(`${place.url}/studio/gallery`);
  await page.waitForSelector(CARD);
  await loaded(page);
}

export async function grid(bench) {
  const { place, page, owner, row } = bench;
  const share = { first: 42, goal: 75, unit: " %", least: true };
  await row("Share of the grid that pictures cover, at 1440 px", share, async () => {
    await gallery(bench);
    // Rows that are complete, from the first card's top to the last one's end, at the whole width of the grid.
    return page.evaluate((selector) => {
      const cards = [...document.querySelectorAll(selector)].slice(0, 48);
      const shown = cards.filter((card) => card.checkVisibility({ visibilityProperty: true }));
      const images = shown.flatMap((card) => [...card.querySelectorAll("img")])
        .map((image) => image.getBoundingClientRect());
      const boxes = shown.map((card) => card.getBoundingClientRect());
      const top = Math.min(...boxes.map((box) => box.top));
      const bottom = Math.max(...boxes.map((box) => box.bottom));
      const covered = images.reduce((sum, { width, height }) => sum + width * height, 0);
      return (100 * covered) / (document.querySelector(".grid").clientWidth * (bottom - top));
    }, CARD);
  });
  await row("Nodes of each card", { goal: 15 }, async () => {
    await gallery(bench);
    const nodes = await page.$$eval(CARD, (cards) => cards.map((card) => 1 + card.querySelectorAll("*").length));
    return nodes.reduce((sum, number) => sum + number, 0) / nodes.length;
  });
  await row("HTML of each card", { goal: 1024, unit: " bytes" }, async () => {
    const { body } = await send(`${place.url}/studio/gallery`, { headers: owner.headers });
    const html = body.toString();
    const part = html.slice(html.indexOf("<article"), html.lastIndexOf("</article>") + "</article>".length);
    return Buffer.byteLength(part) / part.split("<article").length;
  });
  const buttons = "button, summary, a:not(.open):not(figure a):not(.facts a):not(.remix p a)";
  const seen = (opacityProperty) => page.$$eval(CARD, (cards, [selector, options]) => cards.slice(0, 48)
    .flatMap((card) => [...card.querySelectorAll(selector)])
    .filter((button) => button.checkVisibility(options)).length, [buttons, { opacityProperty }]);
  await row("Buttons on 48 cards", { first: 288, goal: 287 }, () => seen(false));
  await row("Of them, seen without pointing at a card", {}, () => seen(true));
}

export async function boards(bench) {
  const { place, page, owner, row } = bench;
  for (let number = 1; number <= 100; number++) {
    const fields = { proof: owner.proof, name: `Board ${number}` };
    await send(`${place.url}/studio/boards`, { method: "POST", headers: owner.headers, fields });
  }
  for (const [width, height, goal] of [[1440, 900, 200], [390, 844, 260]]) {
    await row(`Top of the first picture beside 100 boards, at ${width} px`, { goal, unit: " px" }, async () => {
      await gallery(bench, width, height);
      return page.$eval(`${CARD} img`, (image) => image.getBoundingClientRect().top + scrollY);
    });
  }
}

const painted = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;

export async function paint({ place, person, row }) {
  for (const path of ["/studio", "/studio/gallery"]) {
    await row(`First paint of ${path}, median of 5`, { goal: 200, unit: " ms" }, async () => {
      const found = [];
      for (let number = 0; number < 5; number++) {
        const context = await person("owner", { viewport: { width: 1440, height: 900 } });
        const page = await context.newPage();
        await page.goto(place.url + path);
        await page.waitForFunction(painted);
        found.push(await page.evaluate(painted));
        await context.close();
      }
      return found.sort((a, b) => a - b)[2];
    });
  }
}

export async function script({ place, owner, row }) {
  for (const path of ["/studio", "/studio/gallery"]) {
    const { body } = await send(place.url + path, { headers: owner.headers });
    const files = [...body.toString().matchAll(/<script[^>]* src="([^"]+)"/g)].map(([, file]) => file);
    const weigh = async (encoding) => {
      const headers = { ...owner.headers, "accept-encoding": encoding };
      const answers = await Promise.all(files.map((file) => send(new URL(file, place.url), { headers })));
      return answers.reduce((sum, answer) => sum + answer.body.length, 0);
    };
    await row(`Script of ${path}, compressed`, { goal: 8192, unit: " bytes" }, () => weigh("gzip"));
    await row(`Script of ${path}, plain`, { unit: " bytes" }, () => weigh("identity"));
  }
}

// Adds up what has moved by itself since the page was opened.
const SHIFT = `window.shift = 0; new PerformanceObserver((list) => {
  for (const { value, hadRecentInput } of list.getEntries()) if (!hadRecentInput) window.shift += value;
}).observe({ type: "layout-shift", buffered: true });`;

// What moves on one page of a person while the other one, whose script is elsewhere, creates 5 pictures.
async function shifts({ place, owner, other, person }, who, path) {
  const context = await person(who, { viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  await page.goto(place.url + path);
  await page.waitForSelector(".grid");
  await loaded(page);
  await page.waitForTimeout(1_000);
  await page.evaluate(SHIFT);
  await page.evaluate("window.shift = 0");
  for (let number = 0; number < 5; number++) {
    await createTask(place, other, { prompt: `A kite, ${path} ${who} ${number}` });
  }
  await settled(place, owner);
  await page.waitForTimeout(2_000);
  const moved = await page.evaluate("window.shift");
  await context.close();
  return moved;
}

export async function shift(bench) {
  const pages = { Create: "/studio", "the gallery": "/studio/gallery" };
  const people = [["an onlooker", "owner", { first: 2.8, goal: 0.05 }], ["another tab of their maker", "other", {}]];
  for (const [name, who, limits] of people) {
    for (const [title, path] of Object.entries(pages)) {
      const words = `Layout shift by 5 new pictures, for ${name}, on ${title}`;
      await bench.row(words, limits, () => shifts(bench, who, path));
    }
  }
}

export async function http(bench) {
  const { place, owner, row, count } = bench;
  const p99 = async (path) => {
    const found = await times(place, owner, path, 400);
    return [percentile(found, 0.99), `p50 ${percentile(found, 0.5).toFixed(1)} ms`];
  };
  // What the client and the machine take.
  await row("/healthz over HTTP, p99", { unit: " ms" }, () => p99("/healthz"));
  await row(`The gallery over HTTP, of ${count} tasks, p99`, { goal: 2, unit: " ms" }, () => p99("/studio/gallery"));
  await row("Create over HTTP, p99", { unit: " ms" }, () => p99("/studio"));
  const account = command(place, "account", "list");
  const list = Array.isArray(account) ? account : account.accounts;
  const paths = ["", "/accounts", `/accounts/${list[0].id}`, "/strikes", "/audit"]
    .map((path) => `/studio/operator${path}`);
  for (const path of paths) {
    const name = path.replace(list[0].id, "ID");
    await row(`${name} over HTTP, p99`, { goal: 10, unit: " ms" }, () => p99(path));
  }
}

// Every page: without JavaScript, and under axe-core in both looks and three widths.
import { readFileSync } from "node:fs";
import { CARD } from "./look.mjs";
import { command, createTask, newest, pause, send, settled } from "./service.mjs";

// The pages that somebody signed in can open.
async function paths({ place, owner }) {
  const [task] = await newest(place, owner);
  const list = command(place, "account", "list");
  const account = (Array.isArray(list) ? list : list.accounts)[0].id;
  const endpoint = command(place, "webhook", "add", "--account", "default", "https://10.0.0.1/hooks").id;
  return ["", "/gallery", "/gallery?q=fox&state=completed&starred=1", "/gallery?q=nothing-like-this", `/tasks/${task}`,
    `/compare?a=result:${task}/1&b=result:${task}/1`, "/bin", "/uploads", "/activity", "/docs", "/keys", "/webhooks",
    `/webhooks/${endpoint}`, "/credits", "/usage", "/usage?by=day", "/sessions", "/people", "/operator",
    "/operator/accounts", `/operator/accounts/${account}`, "/operator/strikes", "/operator/audit"]
    .map((path) => `/studio${path}`);
}

export async function plain(bench) {
  const { place, person, owner, row } = bench;
  const context = await person("owner", { javaScriptEnabled: false, viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  const wanted = await paths(bench);
  await row("Pages that work without JavaScript", { goal: wanted.length, least: true }, async () => {
    const bad = [];
    for (const path of wanted) {
      const answer = await page.goto(place.url + path);
      const shown = await page.locator("main h1, main h2, main form, main article").count();
      if (answer.status() !== 200 || !shown) bad.push(`${path} (${answer.status()})`);
    }
    if (bad.length) bench.note(`Without JavaScript: ${bad.join(", ")}`);
    return wanted.length - bad.length;
  });
  const post = (name, act) => row(`Without JavaScript: ${name}`, { goal: 1, least: true, yes: true }, act);
  await post("create a picture", async () => {
    const before = new Set(await newest(place, owner));
    await page.goto(`${place.url}/studio`);
    await page.fill("#prompt", "A boat without any script");
    await page.click("button.make, form[data-make] button:not([type=button])");
    await settled(place, owner);
    return (await newest(place, owner)).some((id) => !before.has(id)) ? 1 : 0;
  });
  await post("search the gallery", async () => {
    await page.goto(`${place.url}/studio/gallery`);
    await page.fill("#q", "without any script");
    await page.press("#q", "Enter");
    await page.waitForURL(/q=without/);
    return await page.locator(CARD).count() ? 1 : 0;
  });
  await post("star and delete chosen pictures, and undo it", async () => {
    const [id] = await newest(place, owner);
    for (const [change, done] of [["star", (ids) => ids.includes(id)], ["delete", (ids) => !ids.includes(id)]]) {
      await page.goto(`${place.url}/studio/gallery`);
      await page.check(`[id="task-${id}"] [data-pick]`, { force: true });
      await page.click(`[data-chosen] [formaction$="/${change}"]`);
      if (!done(await newest(place, owner))) return 0;
    }
    await page.click(".undo button");
    return (await newest(place, owner)).includes(id) ? 1 : 0;
  });
  await context.close();
}

// Opens all parts of a page, but not the menus of cards, which cover what is below them.
const unfold = (page) => page.evaluate(() => {
  for (const part of document.querySelectorAll("main details:not(.remix)")) part.open = true;
});

// Each thing that can be open: its name, and how a person opens it.
const dialogs = (place) => {
  const open = (page, path) => page.goto(`${place.url}/studio${path}`);
  const press = async (page, selector) => {
    await page.locator(selector).first().evaluate((element) => element.click());
    await pause(200);
  };
  const tile = `${CARD}[data-state=completed]`;
  return {
    "the viewer": async (page) => {
      await open(page, "/gallery");
      await press(page, `${tile} a.open`);
      await page.waitForSelector(".viewer .about dl", { timeout: 5_000 });
    },
    "the menu of a picture": async (page) => {
      await open(page, "/gallery");
      await press(page, `${tile} .more`);
      await page.waitForSelector("[data-menu]:popover-open", { timeout: 5_000 });
    },
    "the menu of the person": async (page) => {
      await open(page, "");
      await press(page, ".person > summary");
    },
    "everything that opens in the gallery": async (page) => {
      await open(page, "/gallery");
      await unfold(page);
    },
    "everything that opens on Create": async (page) => {
      await open(page, "");
      await unfold(page);
    },
    "chosen pictures": async (page) => {
      await open(page, "/gallery");
      await press(page, "[data-pick]");
    },
    "the undo notice": async (page) => {
      await open(page, "/gallery");
      await page.focus(`${tile} a.open:not([target])`).catch(() => page.focus(tile));
      await page.keyboard.press("Delete");
      await page.waitForSelector(".undo", { timeout: 5_000 });
    },
    "a failed picture": (page) => open(page, "/gallery?state=failed"),
    "the bin with pictures": (page) => open(page, "/bin"),
    "a question before something is erased": async (page) => {
      await open(page, "/bin");
      await press(page, ".ask > summary");
    },
    "a new key": async (page) => {
      await open(page, "/keys");
      await page.fill("form[action='/studio/keys'] input[name=name]", "laptop");
      await page.press("form[action='/studio/keys'] input[name=name]", "Enter");
      await page.waitForSelector(".secret", { timeout: 5_000 });
    },
    "a page that does not exist": (page) => open(page, "/nowhere"),
  };
};

const RUN = `axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations
  .flatMap(({ id, nodes }) => nodes.map(({ target }) => id + " at " + target.join(" "))))`;

async function examine(page, source, tell) {
  for (const scheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
    for (const width of [360, 768, 1440]) {
      await page.setViewportSize({ width, height: 900 });
      await pause(100);
      // The script is in the page already, unless the page was loaded again.
      await page.evaluate(`typeof axe === "undefined" && ${source}`);
      for (const finding of await page.evaluate(RUN)) tell(`${finding} (${width}, ${scheme})`);
    }
  }
  await page.setViewportSize({ width: 1440, height: 900 });
}

export async function axe(bench) {
  const { place, person, owner, row, packages, browser } = bench;
  await createTask(place, owner, { prompt: "A red fox that is lost [[fail]]" });
  await settled(place, owner);
  const text = readFileSync(`${packages}/node_modules/axe-core/axe.min.js`, "utf8");
  const source = `(() => { ${text}\n; window.axe = axe; })()`;
  const context = await person("owner", { viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  const found = new Map();
  const absent = [];
  let states = 0;
  const visit = async (on, name, act) => {
    try {
      await act(on);
    } catch (error) {
      return void absent.push(name);
    }
    states += 1;
    await examine(on, source, (finding) => found.set(`${name}: ${finding}`, true));
  };
  await row("Violations that axe-core finds, in light and dark, at 360, 768 and 1440 px", { goal: 0 }, async () => {
    for (const path of await paths(bench)) await visit(page, path, () => page.goto(place.url + path));
    for (const [name, act] of Object.entries(dialogs(place))) await visit(page, name, act);
    const stranger = await browser.newContext();
    const outside = await stranger.newPage();
    for (const path of ["/studio/sign-in", "/studio/sign-up", "/studio/sign-in/nonsense", "/"]) {
      await visit(outside, path, () => outside.goto(place.url + path));
    }
    await stranger.close();
    return found.size;
  });
  await context.close();
  bench.note(`axe-core looked at ${states} pages and dialogs, six times each.`);
  if (absent.length) bench.note(`Not there: ${absent.join(", ")}.`);
  const rules = new Map();
  for (const finding of found.keys()) {
    const [name, rule] = finding.match(/^(.*): ([a-z0-9-]+) at /)?.slice(1) ?? ["", finding];
    rules.set(`${rule}, ${name}`, [...(rules.get(`${rule}, ${name}`) ?? []), finding]);
  }
  for (const [rule, list] of rules) bench.note(`${rule}: ${list.length}, such as ${list[0].split(" at ")[1]}`);
}

// Runs the parts of the measurement and prints the table. `measure` starts this.
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { cpus, loadavg } from "node:os";
import { back, held, select, viewer } from "./act.mjs";
import { boards, grid, http, paint, script, shift } from "./look.mjs";
import { axe, plain } from "./pages.mjs";
import { bearer, command, fill, start } from "./service.mjs";

const [program, executable, packages, scratch] = process.argv.slice(2);
// Boards come last but for axe-core: they change what the gallery shows.
const PARTS = { grid, script, paint, http, viewer, back, select, held, shift, plain, boards, axe };
const only = process.env.ONLY?.split(",") ?? Object.keys(PARTS);
const unknown = only.filter((name) => !PARTS[name]);
if (unknown.length) {
  console.error(`ONLY: there is no part ${unknown.join(", ")}. The parts are ${Object.keys(PARTS).join(", ")}.`);
  process.exit(2);
}
const count = Number(process.env.TASKS ?? 2000);
// Without optimisation the program is three times as large.
const kind = statSync(program).size > 120e6 ? "debug" : "release";

const notes = [];
const table = [];
const round = (value) => (value >= 100 ? Math.round(value) : Number(value.toPrecision(3)));

// Measures one number, which may come with a remark, and adds its row. `goal` is the most that it may be, or with
// `least` the least.
async function row(name, { first, firstText, goal, unit = "", least, yes, within }, measure) {
  console.error(`- ${name}`);
  let measured, verdict;
  try {
    const [value, remark] = [await measure()].flat();
    const isNumber = typeof value === "number";
    measured = yes ? (value ? "yes" : "no") : isNumber ? `${round(value)}${unit}` : value;
    if (remark) measured += ` (${remark})`;
    if (within) verdict = value >= within[0] && value <= within[1] ? "met" : "missed";
    else if (goal !== undefined) {
      const met = isNumber && (least ? value >= goal : value <= goal);
      const ratio = isNumber && goal && !yes ? `, ${round(value / goal)} of the goal` : "";
      verdict = `${met ? "met" : "missed"}${ratio}`;
    }
  } catch (error) {
    measured = "not there";
    verdict = "";
    notes.push(`${name}: ${String(error.message ?? error).split("\n")[0]}`);
  }
  const limit = goal === undefined ? "" : `${least ? "≥" : "≤"} ${goal}${unit}`;
  const wanted = within ? `${within.join(" to ")}${unit}` : yes ? "yes" : limit;
  table.push([name, firstText ?? (first === undefined ? "" : `${first}${unit}`), wanted, measured, verdict ?? ""]);
}

async function signIn(browser, place, link) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(link);
  await page.click("main form button, form button");
  await page.waitForURL(`${place.url}/studio`);
  await context.storageState({ path: `${scratch}/state.json` });
  const state = await context.storageState();
  await context.close();
  return state;
}

async function people(place, browser) {
  const links = {
    owner: command(place, "account", "link", "default", "--public-url", place.url).url,
    other: otherLink(place),
  };
  const states = {};
  for (const [who, link] of Object.entries(links)) states[who] = await signIn(browser, place, link);
  return (who, options) => browser.newContext({ ...options, storageState: structuredClone(states[who]) });
}

// A folder of data with as many tasks as wanted: that of an earlier run, or a new one.
async function filled(browser) {
  const data = `${scratch}/data`;
  const kept = process.env.FILLED;
  if (kept && existsSync(kept)) return cpSync(kept, data, { recursive: true });
  mkdirSync(data, { mode: 0o700 });
  const place = await start(program, data);
  command(place, "credits", "grant", "default", "1000000", "--note", "Measurement");
  const person = await people(place, browser);
  const context = await person("owner");
  console.error(`Creating ${count} tasks`);
  await fill(place, await bearer(context, place.url), count);
  await context.close();
  await place.stop();
  if (kept) cpSync(data, kept, { recursive: true });
}

async function run(place, browser) {
  const person = await people(place, browser);
  const context = await person("owner", { viewport: { width: 1440, height: 900 } });
  const otherContext = await person("other");
  const owner = await bearer(context, place.url);
  const other = await bearer(otherContext, place.url);
  await otherContext.close();
  const page = await context.newPage();
  const bench = { place, browser, page, owner, other, person, row, count, packages, note: (text) => notes.push(text) };
  for (const name of Object.keys(PARTS).filter((part) => only.includes(part))) {
    try {
      await PARTS[name](bench);
    } catch (error) {
      table.push([`The part ${name}`, "", "", "not there", ""]);
      notes.push(`${name}: ${String(error.message ?? error).split("\n")[0]}`);
    }
  }
}

// A second person, who creates pictures too.
function otherLink(place) {
  try {
    command(place, "person", "add", "bob", "--account", "default", "--role", "member");
  } catch {
    // The folder of an earlier run has this person.
  }
  return command(place, "person", "link", "bob", "--public-url", place.url).url;
}

const require = createRequire(`${packages}/`);
const { chromium } = require("playwright-core");
const browser = await chromium.launch({ executablePath: executable, args: ["--no-sandbox", "--disable-quic"] });
const began = loadavg()[0];
try {
  await filled(browser);
  const place = await start(program, `${scratch}/data`);
  await run(place, browser);
  await place.stop();
} finally {
  await browser.close();
}
const version = execFileSync(program, ["--version"], { encoding: "utf8" }).trim();
const load = [began, loadavg()[0]].map((value) => value.toFixed(1));
const machine = `${cpus().length} cores, load ${load.join(" to ")}, Chromium ${browser.version()}`;
console.log(`${version}, a ${kind} build, ${count} tasks, ${machine}\n`);
console.log("| Number | First edition | Goal | Measured | Verdict |\n|---|---|---|---|---|");
for (const cells of table) console.log(`| ${cells.join(" | ")} |`);
if (notes.length) console.log(`\n${notes.map((note) => `- ${note}`).join("\n")}`);

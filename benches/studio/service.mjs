// A server of its own, the people who use it, and its gallery full of tasks.
import { execFileSync, spawn } from "node:child_process";
import { Agent, request } from "node:http";
import { createInterface } from "node:readline";

const agent = new Agent({ keepAlive: true, maxSockets: 8 });
const FLAGS = ["--log", "warn", "--submit-rate", "0", "--account-submit-rate", "0", "--max-unfinished", "0"];
const SHAPES = ["1:1", "16:9", "3:4", "1:1", "9:16", "4:3", "2:3", "3:2"];
const THINGS = ["A lighthouse in a storm", "A red fox in the snow", "An old harbour at night, oil on canvas",
  "Two sailing ships on a mountain lake at dawn, with fog between the pines and a village on the far shore"];

// Runs an administrative command and returns what it prints.
export function command(place, ...words) {
  const how = { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] };
  const output = execFileSync(place.program, [...words, "--data", place.data, "--json"], how);
  return JSON.parse(output);
}

// Starts the server on a free port and waits until it is ready.
export async function start(program, data, flags = []) {
  const words = ["serve", "--listen", "127.0.0.1:0", "--data", data, ...FLAGS, ...flags];
  const child = spawn(program, words, { stdio: ["ignore", "pipe", "inherit"] });
  process.on("exit", () => child.kill("SIGKILL"));
  for await (const line of createInterface({ input: child.stdout })) {
    const url = line.match(/https?:\/\/127\.0\.0\.1:\d+/)?.[0];
    if (url) {
      child.stdout.resume();
      return { program, data, url, stop: () => stop(child) };
    }
  }
  throw new Error(`${program} serve ended before it listened`);
}

function stop(child) {
  const ended = new Promise((resolve) => child.on("exit", resolve));
  child.kill("SIGTERM");
  return ended;
}

// Sends one request over a connection that is kept, and returns the status, the headers and the body.
export function send(url, { method = "GET", headers = {}, fields } = {}) {
  const body = fields && new URLSearchParams(fields).toString();
  const type = "application/x-www-form-urlencoded";
  const of = body === undefined ? {} : { "content-type": type, "content-length": body.length };
  return new Promise((resolve, reject) => {
    const asked = request(url, { method, agent, headers: { ...of, ...headers } }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => resolve({ status: answer.statusCode, body: Buffer.concat(parts) }));
      answer.on("error", reject);
    });
    asked.on("error", reject);
    asked.end(body);
  });
}

// What a person's browser sends: the cookies of the session, and the secret of its forms.
export async function bearer(context, url) {
  const cookies = await context.cookies(url);
  const headers = { cookie: cookies.map(({ name, value }) => `${name}=${value}`).join("; "), origin: url };
  const { body } = await send(`${url}/studio`, { headers });
  const proof = body.toString().match(/name="proof" value="([^"]*)"/)?.[1];
  if (!proof) throw new Error("the studio shows no form");
  return { headers, proof };
}

export async function createTask(place, person, fields) {
  for (let tries = 0; tries < 2_000; tries++) {
    const answer = await send(`${place.url}/studio/tasks`, {
      method: "POST",
      headers: { ...person.headers, "x-requested-with": "studio" },
      fields: { proof: person.proof, n: "1", shape: "1:1", references: "", ...fields },
    });
    if (answer.status < 400) return;
    if (answer.status !== 429 && !/too many|unfinished/i.test(answer.body)) {
      throw new Error(`a task was refused with ${answer.status}: ${answer.body.toString().slice(0, 200)}`);
    }
    await pause(250);
  }
  throw new Error("no task was accepted for minutes");
}

export const pause = (millis) => new Promise((resolve) => setTimeout(resolve, millis));

// Fills the gallery, and waits until every task has ended.
export async function fill(place, person, count) {
  let next = 0;
  const submit = async () => {
    while (next < count) {
      const number = next++;
      const prompt = `${THINGS[number % THINGS.length]}, study ${number + 1}`;
      await createTask(place, person, { prompt, shape: SHAPES[number % SHAPES.length] });
    }
  };
  await Promise.all([submit(), submit(), submit(), submit()]);
  await settled(place, person);
}

// Waits until no task of the account is under way.
export async function settled(place, person) {
  for (;;) {
    const { body } = await send(`${place.url}/studio/gallery?state=processing`, { headers: person.headers });
    if (!/id="task-/.test(body.toString())) return;
    await pause(500);
  }
}

// The ids of the newest tasks of the gallery, as the server tells them.
export async function newest(place, person) {
  const { body } = await send(`${place.url}/studio/gallery`, { headers: person.headers });
  return [...body.toString().matchAll(/<article[^>]* id="task-([^"]+)"/g)].map(([, id]) => id);
}

// The time that a request takes, in milliseconds, sorted.
export async function times(place, person, path, count) {
  const found = [];
  for (let number = -20; number < count; number++) {
    const began = performance.now();
    const { status } = await send(place.url + path, { headers: person.headers });
    if (status !== 200) throw new Error(`${path} answered ${status}`);
    if (number >= 0) found.push(performance.now() - began);
  }
  return found.sort((a, b) => a - b);
}

export const percentile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];

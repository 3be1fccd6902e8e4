// Calls of Tintype's TypeScript client, as a program of a user makes them, and with faults between it and the real server.
//
// Arguments: URL, folder for images, and keys of accounts: one without credits, and then ones with 100.
import assert from "node:assert/strict";
import { readFile, readdir, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import * as tintype from "tintype";
import { save } from "tintype/node";

const [url = "", folder = "", poor = "", ...keys] = process.argv.slice(2);

/** A fault answers a request, and may pass it on to the server. */
type Fault = (passOn: () => Promise<Response>) => Response | Promise<Response>;
type Faults = (readonly [path: string, fault: Fault])[];

const lostAnswer: Fault = async (passOn) => {
  await passOn();
  throw new TypeError("fetch failed");
};
const lostRequest: Fault = () => {
  throw new TypeError("fetch failed");
};
const refused = (status: number, code: string, headers = {}): Fault => {
  const body = { error: { code, message: "no", request_id: "r" } };
  return () => Response.json(body, { status, headers });
};
/** The answer of something that is not the API. */
const page = (status: number, headers = {}): Fault => () => new Response("<html>", { status, headers });
/** The server's answer with a change. */
const changed = (change: (data: Record<string, unknown>, headers: Headers) => void): Fault => async (passOn) => {
  const answer = await passOn();
  const body = (await answer.json()) as { data: Record<string, unknown> };
  const headers = new Headers(answer.headers);
  change(body.data, headers);
  return Response.json(body, { headers });
};

const [SUBMIT, LIST, POLL, FILE] = ["/generate", "/task", "/task/", "/files/"];

// Time is what the client has waited for. Waits of a second and more pass at once, and are noted; those for the sketch
// engine are shorter.
const POLL_AFTER = "0.05";
let passed = 0;
let waits: number[] = [];
const timer = globalThis.setTimeout;
performance.now = () => passed;
globalThis.setTimeout = ((call: () => void, ms: number) => {
  if (!new Error().stack?.includes("sleep")) return timer(call, ms);
  passed += ms;
  if (ms < 1_000) return timer(call, ms);
  waits.push(Math.round(ms / 100) / 10);
  return timer(call, 0);
}) as typeof setTimeout;

interface Attempt {
  readonly value: unknown;
  readonly waits: readonly number[];
  /** The requests: method, path, and whether it had the key. */
  readonly seen: readonly (readonly [string, string, boolean])[];
}

/** What a call returns or throws, its waits, and the requests that it sent. Each fault is for the next request to a path that contains its text. */
async function attempt(key: string, call: (client: tintype.Tintype) => Promise<unknown>, ...faults: Faults): Promise<Attempt> {
  const seen: [string, string, boolean][] = [];
  const left = [...faults];
  const fetch: tintype.Fetch = async (to, init) => {
    const { pathname } = new URL(to);
    seen.push([init.method ?? "GET", pathname, new Headers(init.headers).has("authorization")]);
    const passOn = async () => {
      const answer = await globalThis.fetch(to, init);
      const headers = new Headers(answer.headers);
      if (headers.has("x-poll-after")) headers.set("x-poll-after", POLL_AFTER);
      // The body is not compressed any more.
      headers.delete("content-encoding");
      return new Response(answer.body, { status: answer.status, headers });
    };
    const [path, fault] = left[0] ?? [];
    if (!fault || !path || !pathname.includes(path)) return passOn();
    left.shift();
    return fault(passOn);
  };
  [passed, waits] = [0, []];
  const client = new tintype.Tintype({ baseUrl: url, apiKey: key, fetch });
  const value = await call(client).catch((error: unknown) => error);
  assert.deepEqual(left, [], "every fault had its request");
  return { value, waits, seen };
}

const spent = async (key: string) => 100 - (await new tintype.Tintype({ baseUrl: `${url}/api/v1/`, apiKey: key }).credits());
const submits = ({ seen }: Attempt) => seen.filter(([method]) => method === "POST").length;
const nextKey = () => keys.pop() ?? assert.fail("too few keys");
const boat = (client: tintype.Tintype) => client.submit("a boat");
const wholeBoat = (client: tintype.Tintype) => client.generate("a boat");

function is<T>(value: unknown, kind: new (...given: never[]) => T): asserts value is T {
  assert(value instanceof kind, String(value));
}

function isTask(value: unknown): asserts value is tintype.Task {
  assert(typeof value === "object" && value !== null && "taskId" in value && !(value instanceof Error), String(value));
}

function isMade(value: unknown): asserts value is tintype.Generated {
  assert(typeof value === "object" && value !== null && "images" in value, String(value));
}

async function aLostSubmitIsNeverRepeated() {
  let key = nextKey();
  let made = await attempt(key, wholeBoat, [SUBMIT, lostAnswer]);
  isMade(made.value);
  assert.deepEqual([made.value.task.status, made.waits, submits(made), await spent(key)], ["completed", [7], 1, 2]);

  key = nextKey();
  made = await attempt(key, boat, [SUBMIT, lostRequest]);
  is(made.value, tintype.SubmitUnanswered);
  assert.deepEqual([made.value.candidates, made.waits, submits(made), await spent(key)], [[], [7], 1, 0]);
  // A gateway may have passed the submit on before it gave up.
  made = await attempt(key, boat, [SUBMIT, page(502)]);
  is(made.value, tintype.SubmitUnanswered);
  assert.deepEqual([made.waits, submits(made)], [[7], 1]);
  const deaf: Faults = Array(4).fill([LIST, lostRequest]);
  made = await attempt(key, boat, [SUBMIT, lostAnswer], ...deaf);
  is(made.value, tintype.SubmitUnanswered);
  assert.deepEqual([made.value.candidates, made.waits, submits(made), await spent(key)], [null, [7, 2, 4, 8], 1, 2]);
  // Now the account has a task that this submit may have made, beside its own.
  const sooner = changed((_, headers) => {
    headers.set("date", new Date(Date.parse(headers.get("date") ?? "") - 60_000).toUTCString());
  });
  made = await attempt(key, boat, [SUBMIT, lostAnswer], [LIST, sooner]);
  is(made.value, tintype.SubmitUnanswered);
  assert.equal(made.value.candidates?.length, 2);
  // The tasks are older than a submit that begins years later. A page that sees no date cannot tell.
  const later = changed((_, headers) => headers.set("date", "Wed, 01 Jan 2098 00:00:00 GMT"));
  made = await attempt(key, boat, [SUBMIT, lostRequest], [LIST, later]);
  is(made.value, tintype.SubmitUnanswered);
  assert.deepEqual(made.value.candidates, []);
  made = await attempt(key, boat, [SUBMIT, lostRequest], [LIST, changed((_, headers) => headers.delete("date"))]);
  is(made.value, tintype.SubmitUnanswered);
  assert.equal(made.value.candidates, null);
}

async function aRefusedSubmitIsRepeatedAsTheInterfaceSays() {
  const key = nextKey();
  const limited: Faults = [429, 429, 429, 429, 429, 429, 429].map((status) => [SUBMIT, refused(status, "RATE_LIMITED")]);
  let made = await attempt(key, boat, [SUBMIT, refused(429, "RATE_LIMITED", { "retry-after": "3" })], ...limited);
  isTask(made.value);
  assert.deepEqual(made.waits, [3, 2, 4, 8, 16, 32, 60, 60]);
  const failing: Faults[number] = [SUBMIT, refused(500, "INTERNAL_ERROR")];
  made = await attempt(key, boat, failing, failing, failing);
  isTask(made.value);
  assert.deepEqual([made.waits, await spent(key)], [[2, 4, 8], 4]);
  made = await attempt(key, boat, failing, failing, failing, failing);
  is(made.value, tintype.InternalError);
  assert.deepEqual([made.waits, submits(made)], [[2, 4, 8], 4]);
  made = await attempt(key, boat, [SUBMIT, refused(429, "RATE_LIMITED", { "retry-after": "3600" })]);
  is(made.value, tintype.RateLimited);
  assert.deepEqual([made.value.retryAfterMs, made.waits], [3_600_000, []]);
  for (const fault of [page(404), page(302, { location: "https://other.example.com/" })]) {
    made = await attempt(key, boat, [SUBMIT, fault]);
    is(made.value, tintype.WrongServer);
    assert.deepEqual([made.waits, made.seen.length], [[], 1]);
  }
  // A port that nothing listens on any more.
  const closed = createServer().listen(0, "127.0.0.1");
  await new Promise((fulfil) => closed.once("listening", fulfil));
  const { port } = closed.address() as AddressInfo;
  await new Promise((fulfil) => closed.close(fulfil));
  const nowhere = new tintype.Tintype({ baseUrl: `http://127.0.0.1:${port}`, apiKey: key });
  await assert.rejects(nowhere.submit("a boat"), tintype.NoConnection);
  // As Bun and Deno report it.
  const cause = new Error("error sending request: client error (Connect): tcp connect error: Connection refused");
  const inBun = Object.assign(new TypeError("Unable to connect."), { code: "ECONNREFUSED" });
  for (const error of [inBun, new TypeError("fetch failed", { cause })]) {
    made = await attempt(key, boat, [SUBMIT, () => Promise.reject(error)]);
    is(made.value, tintype.NoConnection);
    assert.deepEqual([made.waits, made.seen.length], [[], 1]);
  }
  assert.equal(await spent(key), 4);
}

async function aPollIsRepeatedAsTheInterfaceSays() {
  const key = nextKey();
  const missing: Faults[number] = [POLL, refused(404, "NOT_FOUND")];
  let made = await attempt(key, wholeBoat, missing);
  isMade(made.value);
  assert.deepEqual(made.waits, [1]);
  made = await attempt(key, wholeBoat, missing, missing);
  is(made.value, tintype.NotFound);
  assert.deepEqual(made.waits, [1]);
  const taskId = made.value.taskId ?? assert.fail();
  const limited = refused(429, "RATE_LIMITED", { "retry-after": "9" });
  made = await attempt(key, (client) => client.wait(taskId), [POLL, lostRequest], [POLL, page(503)], [POLL, limited]);
  isTask(made.value);
  assert.deepEqual([made.value.status, made.waits], ["completed", [2, 4, 9]]);
  // Without advice, the first poll is after 10 seconds, and the last before 10 minutes.
  const silent = changed((data, headers) => {
    Object.assign(data, { status: "processing", images: null });
    headers.delete("x-poll-after");
  });
  const silence: Faults = Array(119).fill([POLL, silent]);
  made = await attempt(key, wholeBoat, [SUBMIT, silent], ...silence);
  is(made.value, tintype.NotFinished);
  assert.deepEqual(made.waits, [10, ...Array(118).fill(5)]);
  const evil = changed((data) => Object.assign(data, { task_id: "../../" + "a".repeat(21) }));
  made = await attempt(key, (client) => client.get(taskId), [POLL, evil]);
  is(made.value, tintype.NoAnswer);
}

async function theKeyDoesNotGoToTheFileHost() {
  const key = nextKey();
  const limited = page(429, { "retry-after": "5" });
  let made = await attempt(key, wholeBoat, [FILE, page(503)], [FILE, lostRequest], [FILE, limited]);
  isMade(made.value);
  const { task } = made.value;
  assert.deepEqual(made.waits, [2, 4, 5]);
  assert(made.seen.every(([, path, withKey]) => withKey !== path.startsWith("/files/")), String(made.seen));
  for (const fault of [page(404), page(200)]) {
    made = await attempt(key, (client) => client.download(task), [FILE, fault]);
    is(made.value, tintype.NoImage);
    assert.deepEqual(made.waits, []);
  }
}

async function errorsHaveClasses() {
  let raised = (await attempt("tt_wrong", boat)).value;
  is(raised, tintype.Unauthorized);
  assert.deepEqual([raised.status, raised.code, raised.name], [401, "UNAUTHORIZED", "Unauthorized"]);
  raised = (await attempt(poor, (client) => client.submit("a boat", { n: 2 }))).value;
  is(raised, tintype.InsufficientCredits);
  assert.deepEqual([raised.required, raised.available, raised.requestId === null], [4, 0, false]);
  raised = (await attempt(poor, (client) => client.submit("a boat", { aspectRatio: "17:9" }))).value;
  is(raised, tintype.InvalidRequest);
  raised = (await attempt(poor, (client) => client.get("../account?x="))).value;
  is(raised, tintype.NotFound);
  raised = (await attempt(keys[0] ?? "", (client) => client.generate("a boat [[fail]]"))).value;
  is(raised, tintype.TaskFailed);
  assert(raised.taskId && raised.message.includes(raised.reason));
  const pairs = [["http://example.com", poor], [`${url}?a`, poor], ["ftp://x", poor], [url, "a b"], [url, ""]] as const;
  for (const [baseUrl, apiKey] of pairs) assert.throws(() => new tintype.Tintype({ baseUrl, apiKey }), TypeError);
}

async function filesAreCompleteOrAbsent(key: string) {
  const place = join(folder, "deeper");
  const client = new tintype.Tintype({ baseUrl: url, apiKey: key });
  const result = await client.generate("a lake at dawn", { n: 2, aspectRatio: "16:9" });
  const paths = await save(result, place);
  const names = [1, 2].map((place) => `${result.task.taskId}-${place}.png`);
  assert.deepEqual(paths, names.map((name) => join(place, name)));
  for (const [index, path] of paths.entries()) {
    const png = await readFile(path);
    assert.deepEqual([png.readUInt32BE(16), png.readUInt32BE(20)], [1280, 720]);
    assert(result.images[index] && png.equals(result.images[index]));
  }
  const [first = "", second = ""] = paths;
  await writeFile(second, "");
  assert.deepEqual(await save(result, place), paths, "the first was saved before, and a crash left the second empty");
  await writeFile(first, "mine");
  await assert.rejects(save(result, place), { code: "EEXIST" });
  assert.equal(String(await readFile(first)), "mine");
  assert.deepEqual((await readdir(place)).sort(), names, "nothing is left over");
}

async function callsEndBySignal(key: string) {
  const client = new tintype.Tintype({ baseUrl: url, apiKey: key });
  const both = await Promise.all([client.generate("a boat"), client.generate("a fox")]);
  const listed: string[] = [];
  for await (const task of client.list({ pageSize: 1 })) listed.push(task.taskId);
  assert(both.every(({ task }) => listed.includes(task.taskId)));

  const reason = new Error("enough");
  const signal = AbortSignal.abort(reason);
  const { taskId } = await client.submit("a boat [[delay 10s]]");
  const [task] = both.map(({ task }) => task);
  const calls = [
    client.generate("a boat", { signal }),
    client.submit("a boat", { signal }),
    client.wait(taskId, { signal }),
    client.get(taskId, { signal }),
    client.credits({ signal }),
    client.list({ signal }).next(),
    client.download(task ?? assert.fail(), { signal }),
  ];
  for (const call of calls) await assert.rejects(call, reason);
  const before = await spent(key);
  // In the middle of a request, and of a wait.
  for (const pause of ["request", "wait"]) {
    const controller = new AbortController();
    const waiting = client.wait(taskId, { signal: controller.signal });
    // By the end of this one, the first poll has been answered.
    if (pause === "wait") await client.get(taskId);
    controller.abort(reason);
    await assert.rejects(waiting, reason);
  }
  assert.equal((await client.get(taskId)).status, "processing", "the task goes on");
  assert.equal(await spent(key), before, "an aborted submit was not sent");
}

/** Cloudflare Workers refuse options that their requests lack, and React Native has no streams. */
async function itRunsWithoutPartsOfABrowser(key: string) {
  const lacking = ["cache", "credentials", "referrerPolicy"];
  for (const name of lacking) Reflect.deleteProperty(Request.prototype, name);
  const fetch: tintype.Fetch = async (to, init) => {
    assert.deepEqual(lacking.filter((name) => name in init), []);
    const answer = await globalThis.fetch(to, init);
    const { status, headers } = answer;
    return { status, headers, arrayBuffer: () => answer.arrayBuffer() } as Response;
  };
  isMade(await wholeBoat(new tintype.Tintype({ baseUrl: url, apiKey: key, fetch })));
}

await aLostSubmitIsNeverRepeated();
await aRefusedSubmitIsRepeatedAsTheInterfaceSays();
await aPollIsRepeatedAsTheInterfaceSays();
await theKeyDoesNotGoToTheFileHost();
await errorsHaveClasses();
[passed, waits] = [0, []];
const last = nextKey();
await filesAreCompleteOrAbsent(last);
await callsEndBySignal(last);
await itRunsWithoutPartsOfABrowser(last);
console.log(`${keys.length} keys left`);

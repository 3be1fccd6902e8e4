import { ApiError, NoAnswer, NoConnection, NotFinished, SubmitUnanswered, TaskFailed, TintypeError } from "./errors.js";
import { data, image, send, type Answer, type Fetch } from "./http.js";
import { readPage, readTask, type Generated, type Task } from "./task.js";
import { Backoff, FIRST_POLL_MS, NEXT_POLL_MS, STUCK_AFTER_MS, sleep, untilPoll } from "./waits.js";

// A submit that has not started 5 seconds after it arrived never does, so the list is the truth after that.
const SETTLED_AFTER_MS = 7_000;
// The clocks of the server's machines, and the second that its Date is rounded to, differ by less.
const CLOCK_MARGIN_MS = 3_000;
const LARGEST_PAGE = 100;
const MOST_REMEMBERED = 1_000;

export interface TintypeOptions {
  /** The address of the server, such as `https://images.example.com`. */
  readonly baseUrl: string;
  readonly apiKey: string;
  /** Time for an answer of the API; 60,000 by default. */
  readonly timeoutMs?: number | undefined;
  /** Allows to send the key over plain HTTP to other machines than this one. */
  readonly plainHttp?: boolean | undefined;
  /** Replaces the global `fetch`. */
  readonly fetch?: Fetch | undefined;
}

export interface CallOptions {
  /** Ends the call, which then rejects with the reason of the signal. The task of a call goes on. */
  readonly signal?: AbortSignal | undefined;
}

export interface SubmitOptions extends CallOptions {
  readonly aspectRatio?: string | undefined;
  readonly n?: number | undefined;
  readonly referenceImages?: readonly string[] | undefined;
}

export interface WaitOptions extends CallOptions {
  /** Time until `NotFinished`; 600,000 by default. */
  readonly limitMs?: number | undefined;
}

export interface GenerateOptions extends SubmitOptions, WaitOptions {}

export interface ListOptions extends CallOptions {
  /** Tasks per request, 1 to 100; 20 by default. */
  readonly pageSize?: number | undefined;
}

/** Calls one server with one key. */
export class Tintype {
  readonly baseUrl: string;
  readonly #api: string;
  readonly #authorization: string;
  readonly #timeoutMs: number;
  readonly #fetch: Fetch;
  #inFlight = 0;
  /** Ids of tasks that are known to be of other submits than a lost one. */
  readonly #known = new Set<string>();
  /** The times of the first polls that the server advised, of tasks that nobody has waited for. */
  readonly #firstPolls = new Map<string, number>();

  constructor({ baseUrl, apiKey, timeoutMs = 60_000, plainHttp = false, fetch }: TintypeOptions) {
    const url = parsed(baseUrl);
    if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
      throw new TypeError("the URL of the server must look like https://images.example.com");
    }
    if (url.protocol === "http:" && !plainHttp && !isThisMachine(url.hostname)) {
      throw new TypeError("over plain HTTP anyone on the way can read the key: use https, or plainHttp: true");
    }
    if (!/^[!-~]+$/.test(apiKey)) throw new TypeError("the key is empty or holds characters that no key has");
    // `tintype serve` prints the address of the API.
    this.baseUrl = baseUrl.replace(/\/+$/, "").replace(/\/api\/v1$/, "");
    this.#api = `${this.baseUrl}/api/v1`;
    this.#authorization = `Bearer ${apiKey}`;
    this.#timeoutMs = timeoutMs;
    this.#fetch = fetch ?? ((url, init) => globalThis.fetch(url, init));
  }

  /** Submits, waits and downloads. Every `TintypeError` after the submit has the `taskId`. */
  async generate(prompt: string, options: GenerateOptions = {}): Promise<Generated> {
    const { taskId } = await this.submit(prompt, options);
    try {
      const task = await this.wait(taskId, options);
      return { task, images: await this.download(task, options) };
    } catch (error) {
      if (error instanceof TintypeError) error.taskId = taskId;
      throw error;
    }
  }

  /** Creates a task. Throws `SubmitUnanswered` if it may exist and cannot be told. */
  async submit(prompt: string, options: SubmitOptions = {}): Promise<Task> {
    const { aspectRatio, n, referenceImages = [], signal } = options;
    const references = referenceImages.length > 0;
    const fields = { prompt, aspect_ratio: aspectRatio, n, reference_images: references ? referenceImages : undefined };
    const body = JSON.stringify(fields);
    const end = performance.now() + STUCK_AFTER_MS;
    const backoff = new Backoff();
    this.#inFlight += 1;
    try {
      for (;;) {
        const sent = performance.now();
        try {
          const answer = await this.#ask("/images/generate", this.#timeoutMs, signal, body);
          const task = readTask(data(answer));
          this.#made(task.taskId, untilPoll(answer.headers, FIRST_POLL_MS));
          return task;
        } catch (error) {
          if (error instanceof NoAnswer && !(error instanceof NoConnection)) {
            const task = await this.#settle(sent, references ? "image-to-image" : "text-to-image", error, signal);
            this.#made(task.taskId, 0);
            return task;
          }
          // Only the API itself, which refused, leaves it certain that no task exists and nothing stays charged.
          if (!(error instanceof ApiError)) throw error;
          await pause(backoff, error, end, signal);
        }
      }
    } finally {
      this.#inFlight -= 1;
    }
  }

  /** Polls a task until it is completed. Throws `TaskFailed` or `NotFinished`. */
  async wait(taskId: string, { limitMs = STUCK_AFTER_MS, signal }: WaitOptions = {}): Promise<Task> {
    const begin = performance.now();
    const end = begin + limitMs;
    let backoff = new Backoff(1);
    // A task of another client was submitted some time ago.
    let wait = Math.max((this.#firstPolls.get(taskId) ?? 0) - begin, 0);
    this.#firstPolls.delete(taskId);
    for (;;) {
      if (wait > 0) {
        if (performance.now() + wait > end) throw new NotFinished(taskId);
        await sleep(wait, signal);
      }
      const limit = Math.min(this.#timeoutMs, Math.max(end - performance.now(), 1_000));
      try {
        const answer = await this.#ask(taskPath(taskId), limit, signal);
        const task = readTask(data(answer));
        if (task.status === "failed") throw new TaskFailed(taskId, task.error ?? "the server gave no reason");
        if (task.status === "completed") return task;
        backoff = new Backoff();
        wait = untilPoll(answer.headers, NEXT_POLL_MS);
      } catch (error) {
        wait = backoff.wait(error);
      }
    }
  }

  /** A task as it is now. */
  async get(taskId: string, { signal }: CallOptions = {}): Promise<Task> {
    return readTask(data(await this.#read(taskPath(taskId), signal)));
  }

  /** The tasks of the account, newest first, page by page. */
  async *list({ pageSize = 20, signal }: ListOptions = {}): AsyncGenerator<Task, void, undefined> {
    let next: string | null = null;
    do {
      const query = new URLSearchParams({ limit: String(pageSize), ...(next ? { cursor: next } : {}) });
      const page = readPage(data(await this.#read(`/images/task?${query}`, signal)));
      // Such as from a cache that ignores the query. The list would have no end.
      if (next && page.cursor === next) throw new NoAnswer("the server gives the same page of the list twice");
      yield* page.tasks;
      next = page.cursor;
    } while (next);
  }

  /** The balance. */
  async credits({ signal }: CallOptions = {}): Promise<number> {
    const { credits } = data(await this.#read("/account", signal));
    if (typeof credits !== "number") throw new NoAnswer("the answer is not one of the Tintype API");
    return credits;
  }

  /** The images of a completed task as PNG. Does not send the key. */
  async download(task: Task, { signal }: CallOptions = {}): Promise<Uint8Array<ArrayBuffer>[]> {
    const images = [];
    for (const url of task.images) {
      images.push(await persist(async () => image(await send(this.#fetch, url, {}, STUCK_AFTER_MS, signal)), signal));
    }
    return images;
  }

  /** Sends one request to the API, with the key and therefore without following redirects. */
  #ask(path: string, limitMs: number, signal: AbortSignal | undefined, body?: string): Promise<Answer> {
    const headers = { authorization: this.#authorization };
    const init: RequestInit =
      body === undefined
        ? { headers }
        : { method: "POST", body, headers: { ...headers, "content-type": "application/json" } };
    return send(this.#fetch, this.#api + path, { ...init, redirect: "manual" }, limitMs, signal);
  }

  /** Reads from the API, with retries. */
  #read(path: string, signal: AbortSignal | undefined): Promise<Answer> {
    return persist(async () => {
      const answer = await this.#ask(path, this.#timeoutMs, signal);
      data(answer);
      return answer;
    }, signal);
  }

  #made(taskId: string, untilPollMs: number): void {
    this.#known.add(taskId);
    this.#firstPolls.set(taskId, performance.now() + untilPollMs);
    for (const remembered of [this.#known, this.#firstPolls]) {
      for (const oldest of remembered.keys()) {
        if (remembered.size <= MOST_REMEMBERED) break;
        remembered.delete(oldest);
      }
    }
  }

  /** The task that a lost submit made. A list has no prompts; it tells tasks by their kind and time. */
  async #settle(sent: number, type: string, lost: NoAnswer, signal: AbortSignal | undefined): Promise<Task> {
    await sleep(SETTLED_AFTER_MS, signal);
    let listed: { tasks: Task[]; now: number };
    try {
      const answer = await this.#read(`/images/task?limit=${LARGEST_PAGE}`, signal);
      listed = { tasks: readPage(data(answer)).tasks, now: date(answer.headers) };
    } catch (error) {
      signal?.throwIfAborted();
      const text = "the submit got no answer and the tasks cannot be listed; list them before you submit again";
      throw new SubmitUnanswered(text, null, error);
    }
    // Both times by the server's clock.
    const since = listed.now - (performance.now() - sent) - CLOCK_MARGIN_MS;
    const isOwn = (task: Task) => task.createdAt.getTime() >= since && task.type === type && !this.#known.has(task.taskId);
    const found = listed.tasks.filter(isOwn);
    const [first] = found;
    if (first && found.length === 1 && this.#inFlight === 1) return first;
    const ids = found.map((task) => task.taskId);
    const text = first
      ? `the submit got no answer and may have made one of ${ids.join(", ")}; get these before you repeat it`
      : "the submit got no answer, and the list has no task of it";
    throw new SubmitUnanswered(text, ids, lost);
  }
}

/** Repeats a call that changes nothing, as long as that can help. */
async function persist<T>(call: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  const end = performance.now() + STUCK_AFTER_MS;
  const backoff = new Backoff();
  for (;;) {
    try {
      return await call();
    } catch (error) {
      await pause(backoff, error, end, signal);
    }
  }
}

/** Waits before a retry. Throws the error if a retry cannot help, or comes too late. */
async function pause(backoff: Backoff, error: unknown, end: number, signal: AbortSignal | undefined): Promise<void> {
  const wait = backoff.wait(error);
  if (performance.now() + wait > end) throw error;
  await sleep(wait, signal);
}

/** The time of an answer in milliseconds. A page in a browser sees it only if the server exposes it. */
function date(headers: Headers): number {
  const now = Date.parse(headers.get("date") ?? "");
  if (Number.isNaN(now)) throw new NoAnswer("the answer has no date");
  return now;
}

function taskPath(taskId: string): string {
  return `/images/task/${encodeURIComponent(taskId)}`;
}

function parsed(url: string): URL | undefined {
  try {
    return new URL(url);
  } catch {
    return undefined;
  }
}

function isThisMachine(host: string): boolean {
  return host === "localhost" || host.endsWith(".localhost") || host === "[::1]" || /^127(\.\d+){3}$/.test(host);
}

import {
  NoAnswer,
  NoConnection,
  NoImage,
  RateLimited,
  WrongServer,
  apiError,
  fields,
} from "./errors.js";
import { secondsInMs } from "./waits.js";

// The largest answer that a client reads, in bytes.
const LARGEST_ANSWER = 64 * 1024 * 1024;
const TOO_LARGE = "the answer is larger than 64 MiB";
const PNG = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];

// Neither cookies, nor the address of a page, nor answers from a cache.
const OPTIONS: RequestInit = { credentials: "omit", referrerPolicy: "no-referrer", cache: "no-store" };

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** An answer with all of its body. */
export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Uint8Array<ArrayBuffer>;
}

/** Sends one request and reads the whole answer, within a time. Rejects with the reason of the signal once it aborts. */
export async function send(
  fetch: Fetch,
  url: string,
  init: RequestInit,
  limitMs: number,
  signal: AbortSignal | undefined,
): Promise<Answer> {
  signal?.throwIfAborted();
  const controller = new AbortController();
  const abort = () => controller.abort();
  signal?.addEventListener("abort", abort, { once: true });
  const timer = setTimeout(abort, limitMs);
  try {
    const response = await fetch(url, { ...init, ...known(OPTIONS), signal: controller.signal });
    if (response.type === "opaqueredirect") throw new WrongServer("the server redirects: give its final address");
    return { status: response.status, headers: response.headers, body: await read(response) };
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof WrongServer || error instanceof NoAnswer) throw error;
    if (controller.signal.aborted) throw new NoAnswer(`no complete answer in ${limitMs / 1_000} s`, { cause: error });
    // Bun gives the reason in the error itself.
    const cause = fields((error as Error).cause ?? error);
    const text = typeof cause["message"] === "string" && cause["message"] ? cause["message"] : String(cause["code"] ?? error);
    if (isUnsent(cause)) throw new NoConnection(`no connection, so nothing was sent: ${text}`, { cause: error });
    throw new NoAnswer(`no complete answer: ${text}`, { cause: error });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
    // Ends an answer that was not read to its end.
    controller.abort();
  }
}

/** The options that there are here: Cloudflare Workers refuse a request with others. */
function known(options: RequestInit): RequestInit {
  const known = globalThis.Request?.prototype ?? {};
  return Object.fromEntries(Object.entries(options).filter(([name]) => name in known));
}

/** Whether the cause of a failed fetch is that there was no connection, as Node.js, Bun and Deno report it. */
function isUnsent(cause: Record<string, unknown>): boolean {
  const { code, syscall, errors, message } = cause;
  if (Array.isArray(errors)) return errors.length > 0 && errors.every((error) => isUnsent(fields(error)));
  if (syscall === "connect" || syscall === "getaddrinfo" || code === "UND_ERR_CONNECT_TIMEOUT") return true;
  // The messages of Deno and of Bun, which have no code for it.
  if (/client error \(Connect\)|TLS handshake failed/.test(String(message))) return true;
  return typeof code === "string" && /CERT|UNABLE_TO_VERIFY|WRONG_VERSION_NUMBER|ECONNREFUSED|ConnectionRefused/.test(code);
}

async function read(response: Response): Promise<Uint8Array<ArrayBuffer>> {
  // React Native and node-fetch have no streams of the web.
  if (!response.body?.getReader) {
    const whole = new Uint8Array(await response.arrayBuffer());
    if (whole.length > LARGEST_ANSWER) throw new NoAnswer(TOO_LARGE);
    return whole;
  }
  const chunks: Uint8Array[] = [];
  let length = 0;
  const reader = response.body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    chunks.push(part.value);
    length += part.value.length;
    if (length > LARGEST_ANSWER) throw new NoAnswer(TOO_LARGE);
  }
  const body = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    body.set(chunk, at);
    at += chunk.length;
  }
  return body;
}

/** The data of an answer of the API. Throws its error. */
export function data(answer: Answer): Record<string, unknown> {
  const { status, headers } = answer;
  const body = json(answer.body);
  const retryAfterMs = secondsInMs(headers, "retry-after");
  if (status === 200) {
    const { data } = fields(body);
    if (typeof data === "object" && data !== null && !Array.isArray(data)) return fields(data);
  } else {
    const error = apiError(status, body, retryAfterMs);
    if (error) throw error;
    if (status >= 300 && status < 400) {
      const to = headers.get("location");
      const advice = "give the address of the server, without a path";
      throw new WrongServer(`this address redirects to ${to}, and is not that of the API: ${advice}`);
    }
    if (status === 429) {
      const message = "a gateway of the server refuses so many requests";
      throw new RateLimited({ status, code: "RATE_LIMITED", message, requestId: null, retryAfterMs });
    }
    if (status < 500) {
      throw new WrongServer(`HTTP ${status}, and not from the Tintype API: check the address of the server`);
    }
  }
  throw new NoAnswer(`HTTP ${status}, and not from the Tintype API`);
}

function json(body: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(body));
  } catch {
    return undefined;
  }
}

/** The image in an answer of the file host. */
export function image({ status, headers, body }: Answer): Uint8Array<ArrayBuffer> {
  if (status === 200) {
    if (PNG.some((byte, index) => body[index] !== byte)) throw new NoImage("the file is not a PNG");
    return body;
  }
  const message = `the file host answered HTTP ${status}`;
  if (status === 429) {
    const retryAfterMs = secondsInMs(headers, "retry-after");
    throw new RateLimited({ status, code: "RATE_LIMITED", message, requestId: null, retryAfterMs });
  }
  if (status < 500) {
    throw new NoImage(`${message}: the URL may have expired, or the file may be gone; get the task again`);
  }
  throw new NoAnswer(message);
}

// The waits between polls and before retries (sections 4.4 and 7 of the interface), in milliseconds.

import { ApiError, NoAnswer, NotFound } from "./errors.js";

export const STUCK_AFTER_MS = 600_000;
export const FIRST_POLL_MS = 10_000;
export const NEXT_POLL_MS = 5_000;
const SHORTEST_WAIT_MS = 50;
const FAILURE_WAITS_MS = [2_000, 4_000, 8_000];
const LONGEST_THROTTLE_MS = 60_000;
// Timers count no further.
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Waits. Rejects with the reason of the signal once that aborts. */
export function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((fulfil, reject) => {
    signal?.throwIfAborted();
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(
      () => {
        signal?.removeEventListener("abort", abort);
        fulfil();
      },
      Math.min(ms, LONGEST_TIMER_MS),
    );
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/** A header in seconds; `null` for a date, or for no number. */
export function secondsInMs(headers: Headers, name: string): number | null {
  const text = headers.get(name)?.trim();
  const seconds = Number(text);
  return text && seconds >= 0 && seconds < 1e9 ? seconds * 1_000 : null;
}

/** The wait that the server advises, but never longer than the interface's own. */
export function untilPoll(headers: Headers, otherwiseMs: number): number {
  const hint = secondsInMs(headers, "x-poll-after");
  return hint === null ? otherwiseMs : Math.min(Math.max(hint, SHORTEST_WAIT_MS), otherwiseMs);
}

/** The errors since the last success. */
export class Backoff {
  #failures = 0;
  #throttled = 0;
  #missing: number;

  /** `missing` is how often a 404 is retried. */
  constructor(missing = 0) {
    this.#missing = missing;
  }

  /** The wait before a retry. Throws the error if a retry cannot help. */
  wait(error: unknown): number {
    const asked = error instanceof ApiError ? error.retryAfterMs : null;
    if (error instanceof ApiError) {
      if (error.status === 429) {
        const doubled = Math.min(1_000 * 2 ** this.#throttled++, LONGEST_THROTTLE_MS);
        return Math.max(asked ?? doubled, SHORTEST_WAIT_MS);
      }
      if (error instanceof NotFound && this.#missing > 0) {
        this.#missing -= 1;
        return 1_000;
      }
      if (error.status < 500) throw error;
    } else if (!(error instanceof NoAnswer)) {
      throw error;
    }
    const wait = FAILURE_WAITS_MS[this.#failures++];
    if (wait === undefined) throw error;
    return asked === null ? wait : Math.max(asked, SHORTEST_WAIT_MS);
  }
}

// The errors of the client, after the codes of the API.

/** Any error of this package. */
export class TintypeError extends Error {
  override get name(): string {
    return "TintypeError";
  }
  /** The task that the error is about, which exists and may go on. */
  declare taskId?: string;
}

/** No complete answer of the API or of the file host. Never thrown by a submit that may have been accepted. */
export class NoAnswer extends TintypeError {
  override get name(): string {
    return "NoAnswer";
  }
}

/** No connection was made, so nothing was sent. Browsers do not tell; there it is a `NoAnswer`. */
export class NoConnection extends NoAnswer {
  override get name(): string {
    return "NoConnection";
  }
}

/** The answer is a redirect, or a refusal that is not one of the Tintype API. Nothing was accepted. */
export class WrongServer extends TintypeError {
  override get name(): string {
    return "WrongServer";
  }
}

/** A file of a completed task is gone or is no PNG, or its URL has expired. */
export class NoImage extends TintypeError {
  override get name(): string {
    return "NoImage";
  }
}

/** The task is not terminal after the time limit. It goes on; `wait` for it later by its `taskId`. */
export class NotFinished extends TintypeError {
  override get name(): string {
    return "NotFinished";
  }

  constructor(taskId: string) {
    super(`${taskId} is not finished in time; wait for it later, or contact support with this id`);
    this.taskId = taskId;
  }
}

/** The task failed, for this `reason`. Its credits are refunded. */
export class TaskFailed extends TintypeError {
  override get name(): string {
    return "TaskFailed";
  }

  constructor(
    taskId: string,
    readonly reason: string,
  ) {
    super(`${taskId} failed: ${reason}`);
    this.taskId = taskId;
  }
}

/**
 * A submit got no answer, and the list of tasks does not tell for certain which task it made.
 *
 * `candidates` are the ids of the tasks that it may have made; `null` if the list could not be read.
 */
export class SubmitUnanswered extends TintypeError {
  override get name(): string {
    return "SubmitUnanswered";
  }

  constructor(
    message: string,
    readonly candidates: readonly string[] | null,
    cause: unknown,
  ) {
    super(message, { cause });
  }
}

/** The facts of an answer with an error. */
export interface Refusal {
  readonly status: number;
  /** Stable: safe to branch on. */
  readonly code: string;
  readonly message: string;
  /** For support. */
  readonly requestId: string | null;
  /** The wait that `Retry-After` asks for. */
  readonly retryAfterMs: number | null;
}

/** The API answered with an error. */
export class ApiError extends TintypeError implements Refusal {
  override get name(): string {
    return "ApiError";
  }
  readonly status: number;
  readonly code: string;
  readonly requestId: string | null;
  readonly retryAfterMs: number | null;

  constructor(refusal: Refusal) {
    super(`${refusal.message} (${refusal.code}, request ${refusal.requestId})`);
    this.status = refusal.status;
    this.code = refusal.code;
    this.requestId = refusal.requestId;
    this.retryAfterMs = refusal.retryAfterMs;
  }
}

/** `UNAUTHORIZED`: the key is missing, wrong, disabled, expired or revoked. */
export class Unauthorized extends ApiError {
  override get name(): string {
    return "Unauthorized";
  }
}

/** `INVALID_REQUEST`: the message says which field is wrong. */
export class InvalidRequest extends ApiError {
  override get name(): string {
    return "InvalidRequest";
  }
}

/** `NOT_FOUND`: the account has no such task. */
export class NotFound extends ApiError {
  override get name(): string {
    return "NotFound";
  }
}

/** `RATE_LIMITED`, after the time for retries is over. */
export class RateLimited extends ApiError {
  override get name(): string {
    return "RateLimited";
  }
}

/** `INTERNAL_ERROR`, after all retries. Nothing stays charged. */
export class InternalError extends ApiError {
  override get name(): string {
    return "InternalError";
  }
}

/** `INSUFFICIENT_CREDITS`, with the credits `required` and `available`. */
export class InsufficientCredits extends ApiError {
  override get name(): string {
    return "InsufficientCredits";
  }

  constructor(
    refusal: Refusal,
    readonly required: number | null,
    readonly available: number | null,
  ) {
    super(refusal);
  }
}

const CLASSES: ReadonlyMap<string, new (refusal: Refusal) => ApiError> = new Map([
  ["UNAUTHORIZED", Unauthorized],
  ["INVALID_REQUEST", InvalidRequest],
  ["NOT_FOUND", NotFound],
  ["RATE_LIMITED", RateLimited],
  ["INTERNAL_ERROR", InternalError],
]);

/** The error in an envelope; `undefined` if the body is not an envelope of the API. */
export function apiError(status: number, body: unknown, retryAfterMs: number | null): ApiError | undefined {
  const detail = fields(fields(body)["error"]);
  const { code, message, request_id: requestId } = detail;
  if (typeof code !== "string") return undefined;
  const refusal = {
    status,
    code,
    message: typeof message === "string" ? message : "",
    requestId: typeof requestId === "string" ? requestId : null,
    retryAfterMs,
  };
  if (code === "INSUFFICIENT_CREDITS") {
    const { required, available } = { ...fields(body), ...detail };
    return new InsufficientCredits(refusal, integer(required), integer(available));
  }
  return new (CLASSES.get(code) ?? ApiError)(refusal);
}

/** The fields of a JSON object; none for anything else. */
export function fields(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

function integer(value: unknown): number | null {
  return Number.isInteger(value) ? (value as number) : null;
}

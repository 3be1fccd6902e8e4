export { Tintype } from "./client.js";
export type {
  CallOptions,
  GenerateOptions,
  ListOptions,
  SubmitOptions,
  TintypeOptions,
  WaitOptions,
} from "./client.js";
export {
  ApiError,
  InsufficientCredits,
  InternalError,
  InvalidRequest,
  NoAnswer,
  NoConnection,
  NoImage,
  NotFinished,
  NotFound,
  RateLimited,
  SubmitUnanswered,
  TaskFailed,
  TintypeError,
  Unauthorized,
  WrongServer,
} from "./errors.js";
export type { Refusal } from "./errors.js";
export type { Fetch } from "./http.js";
export type { Generated, Status, Task } from "./task.js";

import { NoAnswer, fields } from "./errors.js";

export type Status = "processing" | "completed" | "failed";

/** A task, as the API returns it. `images` are the URLs, in order. */
export interface Task {
  readonly taskId: string;
  readonly status: Status;
  readonly type: string;
  readonly images: readonly string[];
  readonly error: string | null;
  readonly createdAt: Date;
}

/** A completed task and its images as PNG, in order. */
export interface Generated {
  readonly task: Task;
  readonly images: readonly Uint8Array<ArrayBuffer>[];
}

// Ids become parts of URLs and of file names.
const TASK_ID = /^imgmodel-[A-Za-z0-9_-]{21}$/;

/** The task in an answer. Throws `NoAnswer` if it is none. */
export function readTask(data: unknown): Task {
  const { task_id: taskId, status, type, images, error, created_at } = fields(data);
  const createdAt = new Date(typeof created_at === "string" ? created_at : NaN);
  const urls = (Array.isArray(images) ? images : []).map((image) => fields(image)["url"]);
  if (
    typeof taskId === "string" &&
    TASK_ID.test(taskId) &&
    (status === "processing" || status === "completed" || status === "failed") &&
    typeof type === "string" &&
    urls.every((url) => typeof url === "string") &&
    !Number.isNaN(createdAt.getTime())
  ) {
    return { taskId, status, type, images: urls, error: typeof error === "string" ? error : null, createdAt };
  }
  throw new NoAnswer("the answer is not one of the Tintype API");
}

/** A page of the list, and the cursor of the next one. */
export function readPage(data: Record<string, unknown>): { tasks: Task[]; cursor: string | null } {
  const { items, next_cursor: cursor } = data;
  if (!Array.isArray(items)) throw new NoAnswer("the answer is not one of the Tintype API");
  return { tasks: items.map(readTask), cursor: typeof cursor === "string" && cursor ? cursor : null };
}

// Parts for Node.js only.

import { randomUUID } from "node:crypto";
import { mkdir, open, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";

import type { Generated } from "./task.js";

/**
 * Writes the images as `TASK_ID-1.png` and so on, and makes the folder if it is missing. Returns the paths.
 *
 * A file is written completely or not at all. Rejects with the code `EEXIST` for a name that another file has; an image that an
 * earlier call saved stays as it is.
 */
export async function save({ task, images }: Generated, folder = "."): Promise<string[]> {
  await mkdir(folder, { recursive: true });
  const paths = [];
  for (const [index, image] of images.entries()) {
    const name = `${task.taskId}-${index + 1}.png`;
    await saveOne(join(folder, name), join(folder, `.${name}.${randomUUID()}.part`), image);
    paths.push(join(folder, name));
  }
  return paths;
}

async function saveOne(path: string, unfinished: string, content: Uint8Array): Promise<void> {
  try {
    const file = await open(unfinished, "wx");
    try {
      await file.writeFile(content);
      await file.sync();
    } finally {
      await file.close();
    }
    try {
      // A rename replaces its target, so an empty file of ours claims the name first.
      await (await open(path, "wx")).close();
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      const found = await readFile(path);
      if (found.equals(content)) return;
      // A crash after the claim leaves an empty file.
      if (found.length > 0) throw error;
    }
    await rename(unfinished, path);
  } finally {
    await rm(unfinished, { force: true });
  }
}

// Checks a document with the recommended rules of Redocly: node lint.mjs FILE. Prints problems, warnings included.
import { createConfig, formatProblems, lint } from "@redocly/openapi-core";

const problems = await lint({ ref: process.argv[2], config: await createConfig({ extends: ["recommended"] }) });
formatProblems(problems, { format: "stylish", totals: { errors: 0, warnings: 0, ignored: 0 }, version: "" });
process.exit(problems.length === 0 ? 0 : 1);

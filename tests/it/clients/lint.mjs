// Checks a document with the recommended rules of Redocly and some more: node lint.mjs FILE. Prints problems, warnings included.
import { createConfig, formatProblems, lint } from "@redocly/openapi-core";

const more = [
  "component-name-unique",
  "info-contact",
  "no-invalid-parameter-examples",
  "no-invalid-schema-examples",
  "operation-description",
  "operation-singular-tag",
  "operation-tag-defined",
  "parameter-description",
  "path-not-include-query",
  "tag-description",
];
const rules = Object.fromEntries(more.map((rule) => [rule, "error"]));
const config = await createConfig({ extends: ["recommended"], rules });
const problems = await lint({ ref: process.argv[2], config });
formatProblems(problems, { format: "stylish", totals: { errors: 0, warnings: 0, ignored: 0 }, version: "" });
process.exit(problems.length === 0 ? 0 : 1);

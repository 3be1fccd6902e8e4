export default {
  input: "openapi.json",
  output: "hey",
  plugins: ["@hey-api/client-fetch", "@hey-api/sdk", { name: "@hey-api/typescript", enums: "javascript" }],
  logs: { level: "warn" },
};

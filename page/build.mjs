// Bundles src/ into the folder that the Python package serves: page.js, page.css, and the files that stay as they are.
import { cp, mkdir, rm } from "node:fs/promises";
import { build } from "esbuild";

const folder = process.argv[2] ?? "../operator/rlhf_operator/page/static";

await rm(folder, { recursive: true, force: true });
await mkdir(folder, { recursive: true });
await build({
  entryPoints: { page: "src/main.tsx" },
  outdir: folder,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
});
await cp("public", folder, { recursive: true });

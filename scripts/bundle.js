// Bundle the modules of static/ into one file, which names the sources that it was made of (designer/assets.py).

import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";

import { buildSync } from "esbuild";

const BUNDLE = "bundle.js";
const names = readdirSync("static", { recursive: true }).filter((name) => name.endsWith(".js") && name !== BUNDLE);
const hash = createHash("sha256");
for (const name of names.sort()) hash.update(readFileSync(`static/${name}`));

buildSync({
  entryPoints: ["static/widgets.js"],
  outfile: `static/${BUNDLE}`,
  banner: { js: `// ${hash.digest("hex").slice(0, 16)}` },
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2023",
});

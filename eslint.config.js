import js from "@eslint/js";

export default [
  { ignores: [".venv/", "build/", "dist/", "static/bundle.js"] },
  js.configs.recommended,
  {
    files: ["static/*/*.js"],
    rules: {
      "no-restricted-imports": [
        "error",
        { patterns: [{ regex: "^\\.\\./(?!kit/)", message: "A widget imports its own folder and kit/ only." }] },
      ],
    },
  },
  {
    rules: {
      "no-undef": "off", // tsc knows the names of a browser
      complexity: ["error", 10], // optional chaining counts
      eqeqeq: "error",
      "max-len": ["error", 120],
      "max-lines": ["error", 400],
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "prefer-const": ["error", { destructuring: "all" }],
    },
  },
];

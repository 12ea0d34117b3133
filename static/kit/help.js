// Links into the documentation site, which the server of the page serves at docs/.

/** Pages of the site that the help menu names. */
export const PAGES = {
  "First tutorial": "tutorial.html",
  "User guide": "guide/index.html",
  Glossary: "glossary.html",
  "Design document": "reference/document.html",
};

/** Open a page of the site in a tab of its own. */
export function openPage(page) {
  window.open(`docs/${page}`, "_blank", "noopener");
}

// Panel imports modules by `importShim`, for which it loads a polyfill that rewrites each module. The browser's own
// import suffices for this page.
window.importShim = Object.assign((/** @type {string} */ url) => import(url), { addImportMap() {} });

// Panel imports modules by `importShim`, for which it loads a polyfill that reads each of them and writes it anew. What
// this page needs every browser does itself.
window.importShim = Object.assign((/** @type {string} */ url) => import(url), { addImportMap() {} });

// The font of the page, which the server provides.

/** Families of texts on canvases, as in `kit/canvas.css`. */
export const FONT = "Roboto, system-ui, sans-serif";

/**
 * Load both weights of the font. Widgets wait for this, because canvases measure texts before they draw them. A page
 * without the font has the font of the system.
 */
export const loadFont = () =>
  Promise.allSettled([400, 700].map((weight) => document.fonts.load(`${weight} 13px ${FONT}`)));

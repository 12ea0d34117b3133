// A function that returns the controls in view: kind, name and centre of each.
() => {
  const targets =
    "button, summary, select, input:not([type=file]), [role=tab], [role=menuitem], [role=menuitemradio], " +
    ".mw-stage, .mw-grip-area, .mw-device, .mw-xchip, .mw-mesh";
  const isInView = ({ left, top, right, bottom }) =>
    left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight && right - left > 1;
  const inside = (root) => [...root.querySelectorAll("*")].flatMap((each) => [each, ...all(each.shadowRoot)]);
  const all = (root) => (root ? inside(root) : []);
  const describe = (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    const name = (element.ariaLabel ?? element.textContent).trim().slice(0, 60);
    return [element.tagName.toLowerCase(), name, (left + right) / 2, (top + bottom) / 2];
  };
  return all(document)
    .filter((element) => element.matches(targets) && element.checkVisibility({ visibilityProperty: true }))
    .filter((element) => isInView(element.getBoundingClientRect()))
    .map(describe);
};

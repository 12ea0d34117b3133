// Take the steps of a lesson as a learner does: wrong and right answers, the explanation, the highlighted control.
// Waits frame by frame, which takes a third of the time that expectations from outside take.

const PATIENCE_MS = 15_000;

/** A promise of the first true value of a function. */
const until = (what, find) =>
  new Promise((resolve, reject) => {
    const end = performance.now() + PATIENCE_MS;
    const look = () => {
      const found = find();
      if (found) resolve(found);
      else if (performance.now() > end) reject(new Error(`nothing came of: ${what}`));
      else requestAnimationFrame(look);
    };
    look();
  });

async ([pane, upload, steps]) => {
  const all = (selector) => [...pane.querySelectorAll(selector)].filter((each) => each.checkVisibility());
  const press = async (label) =>
    (await until(`button ${label}`, () => all("button").find((each) => each.textContent === label))).click();
  const judged = (passed) => until(`passed ${passed}`, () => all(`.mw-lesson-verdict[data-passed="${passed}"]`)[0]);

  const answer = async (given) => {
    const field = pane.querySelector(".mw-lesson-number");
    if (field) field.value = given;
    else pane.querySelector(`input[type="radio"][value="${given}"]`).click();
    await press("Answer");
  };
  const open = (text) => {
    const files = new DataTransfer();
    files.items.add(new File([text], "solution.json", { type: "application/json" }));
    upload.files = files.files;
    upload.dispatchEvent(new Event("change", { bubbles: true }));
  };

  const settle = async ({ title, kind, wrong, right }) => {
    if (all(".mw-lesson-explanation").length) throw new Error(`explained before the answer: ${title}`);
    if (kind === "measurement") return press("Show the answer");
    if (kind === "task") {
      await judged(false);
      open(right);
    } else {
      await answer(wrong);
      await judged(false);
      await answer(right);
    }
    return judged(true);
  };

  for (const [number, step] of steps.entries()) {
    const { title, isExplained, highlight, kind } = step;
    await until(`step ${title}`, () => all("h2")[0]?.textContent === title);
    await until(`number ${number + 1}`, () => pane.textContent.includes(`Step ${number + 1} of ${steps.length}`));
    if (kind) await settle(step);
    if (isExplained) await until("the explanation", () => all(".mw-lesson-explanation")[0]);
    if (/\{\{|\[\[/.test(pane.innerText)) throw new Error(`a mark is shown: ${title}`);
    if (highlight) await until(`${title}: ${highlight}`, () => all(".mw-lesson-ring:popover-open")[0]);
    await press(number < steps.length - 1 ? "Next" : "Finish");
  }
  await until("the list of lessons", () => all("h2")[0]?.textContent === "Lessons");
};

// Running text whose tokens can be chosen, one or a range: by pointer, by touch and by keyboard.

const SIDE_NAMES = { image: "Image", audio: "Recording", text: "Text", pair: "Second text", continuation: "Continuation", source: "Source", target: "Target so far", objects: "Object queries" };

/** A list of tokens as text. `choose(range)` is told what was chosen, as [first, end] of entries, or null. */
function passage(app, label, { choose, lines }) {
  const box = make("div", { className: "ns-passage", role: "listbox", "aria-label": label, "aria-multiselectable": "true" });
  let chips = [];
  let anchor = null;
  let dragging = false;
  let chosen = null;

  const indexOf = (element) => {
    const chip = element?.closest?.(".ns-chip");
    return chip && box.contains(chip) ? Number(chip.dataset.at) : null;
  };
  const between = (a, b) => [Math.min(a, b), Math.max(a, b) + 1];
  function take(at, extend) {
    const alone = chosen && chosen[1] - chosen[0] === 1 && chosen[0] === at;
    if (!extend || anchor === null) anchor = at;
    roam(at);
    choose(alone && !extend ? null : between(anchor, at));
    if (alone && !extend) anchor = null;
  }
  /** Let the tab key come back to this token. */
  function roam(at) {
    for (const chip of box.querySelectorAll('.ns-chip[tabindex="0"]')) chip.tabIndex = -1;
    if (chips[at]) chips[at].tabIndex = 0;
  }

  box.addEventListener("pointerdown", (event) => {
    const at = indexOf(event.target);
    if (at === null || event.button !== 0) return;
    if (event.pointerType === "touch") return; // a touch may be the start of scrolling: wait for the click
    event.preventDefault();
    chips[at].focus({ preventScroll: true });
    dragging = true;
    take(at, event.shiftKey);
  });
  box.addEventListener("pointermove", (event) => {
    const at = indexOf(document.elementFromPoint(event.clientX, event.clientY) ?? event.target) ?? indexOf(event.target);
    if (at === null) return app.tip(null);
    app.tip(event, lines(at));
    if (!dragging || !(event.buttons & 1) || anchor === null) return;
    const range = between(anchor, at);
    if (String(range) !== String(chosen) && (at !== anchor || chosen)) choose(range);
  });
  box.addEventListener("pointerleave", () => app.tip(null));
  box.addEventListener("click", (event) => {
    if (event.pointerType !== "touch") return;
    const at = indexOf(event.target);
    // There is no shift key: the second token ends the range.
    if (at !== null) take(at, chosen !== null && chosen[1] - chosen[0] === 1 && chosen[0] !== at);
  });
  const release = () => (dragging = false);
  window.addEventListener("pointerup", release);
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = indexOf(event.target);
    if (at === null) return;
    const forward = box.dir === "rtl" ? -1 : 1;
    const step = { ArrowRight: forward, ArrowLeft: -forward, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const written = [...chips.keys()].filter((place) => chips[place]);
    const last = written.length - 1;
    let next = { Home: written[0], End: written[last] }[event.key];
    if (step !== undefined) next = written[Math.max(0, Math.min(last, written.indexOf(at) + step))];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      take(at, event.shiftKey);
    } else if (next !== undefined) {
      event.preventDefault();
      if (event.shiftKey && anchor === null) anchor = at;
      if (!event.shiftKey) anchor = next;
      roam(next);
      choose(between(anchor, next));
      chips[next].focus();
    }
  });

  return {
    element: box,
    /** Put the tokens in; `list` has their text, whether a space is before it, their side, and whether they are patches, which are no text. */
    build(list, sides) {
      chips = [];
      anchor = null;
      box.dir = directionOf(list.map(({ text }) => text));
      box.classList.toggle("ns-many", list.length > 120);
      const content = [];
      let before = null;
      list.forEach((entry, at) => {
        if (entry.patch) return;
        if (sides && before?.side !== entry.side)
          content.push(make("span", { className: "ns-side", "aria-hidden": "true" }, SIDE_NAMES[entry.side] ?? entry.side));
        else if (entry.space) content.push(" ");
        const chip = make("span", { className: `ns-chip${entry.special ? " ns-special" : ""}`, role: "option", tabIndex: before ? -1 : 0 },
          entry.text === "" ? "·" : visible(entry.text, 60));
        chip.dataset.at = at;
        before = entry;
        chips[at] = chip;
        content.push(chip);
        if (entry.text.endsWith("\n")) content.push(make("br"));
      });
      box.replaceChildren(...content);
    },
    /** Colour the tokens, and mark those that are chosen. */
    paint(style, range) {
      chosen = range;
      chips.forEach((chip, at) => {
        const { background, ink, name } = style(at);
        chip.style.backgroundColor = background;
        chip.style.color = ink;
        chip.setAttribute("aria-label", name);
        const inside = Boolean(range) && at >= range[0] && at < range[1];
        chip.setAttribute("aria-selected", String(inside));
        chip.classList.toggle("ns-in", inside);
        chip.classList.toggle("ns-first", inside && at === range[0]);
        chip.classList.toggle("ns-last", inside && at === range[1] - 1);
      });
    },
    forget: () => (anchor = null),
  };
}

// The list of sentence pairs. Only the rows in view are in the page, so that ten thousand pairs stay fast.

const ROW_HEIGHT = 58; // pixels, as in links.css
const SPARE_ROWS = 6; // above and below the rows in view

function pairList(app) {
  const inner = make("div", { className: "ns-rows" });
  const element = make("div", {
    className: "ns-pairs", role: "listbox", tabIndex: 0, "aria-label": "Sentence pairs",
    on: {
      scroll: () => draw(),
      keydown: (event) => {
        const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        event.stopPropagation();
        app.move(step);
      },
    },
  }, inner);
  const prefix = `nsp${++instances}`;

  function row(place) {
    const pair = app.listed[place];
    const chosen = pair === app.pair;
    const sum = totalsOf([pair], app.state.from / 100);
    const rate = app.compared ? errorRate(sum) : null;
    const score = sum.scored ? wholePercent(sum.scores / sum.scored) : "–";
    const said = pair.skipped ? pair.skipped : rate !== null ? `AER ${wholePercent(rate)}` : score;
    const line = (words) => make("bdi", { dir: directionOf(words) }, visible(words.slice(0, 40).join(" "), 160));
    const option = make("div", {
      className: `ns-pairrow${chosen ? " ns-here" : ""}`, role: "option", id: `${prefix}-${pair.number}`,
      "aria-selected": String(chosen), "aria-setsize": String(app.listed.length), "aria-posinset": String(place + 1),
      on: { click: () => app.set({ pair: pair.number, word: null }) },
    },
    make("span", { className: "ns-rank" }, counted(pair.number + 1)),
    make("span", { className: "ns-sentences" }, line(pair.source), line(pair.target)),
    make("span", { className: "ns-rate" }, said));
    option.style.top = `${place * ROW_HEIGHT}px`;
    return option;
  }

  function draw() {
    const first = Math.max(0, Math.floor(element.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    const end = Math.min(app.listed.length, Math.ceil((element.scrollTop + element.clientHeight) / ROW_HEIGHT) + SPARE_ROWS);
    inner.style.height = `${app.listed.length * ROW_HEIGHT}px`;
    inner.replaceChildren(...Array.from({ length: Math.max(0, end - first) }, (_, at) => row(first + at)));
    if (app.pair) element.setAttribute("aria-activedescendant", `${prefix}-${app.pair.number}`);
    else element.removeAttribute("aria-activedescendant");
  }

  /** Scroll the chosen pair into view. */
  function reveal() {
    const place = app.listed.indexOf(app.pair);
    if (place < 0) return;
    const top = place * ROW_HEIGHT;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + ROW_HEIGHT > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW_HEIGHT - element.clientHeight;
  }

  return { element, draw, reveal };
}

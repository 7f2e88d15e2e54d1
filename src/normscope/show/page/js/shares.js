// The view of an attribution: a record of state, and a function that shows it.

const SHARE_KEYS = [
  ["← →", "next and previous token"],
  ["⇧← ⇧→", "extend the range of tokens"],
  ["Home End", "first and last token"],
  ["l  L", "next layer, previous layer"],
  ["s  S", "next answer, previous answer"],
  ["a", "all answers together"],
  ["w", "words or pieces"],
  ["r", "colours in proportion or by the square root"],
  ["t", "dark or light"],
  ["Esc", "clear the selection"],
  ["?", "this list"],
];

/** Isolate a token, so that one written from right to left does not move the words around it. */
function isolated(text) {
  return `\u2068${text}\u2069`;
}

/** Return a valid state: fields that do not fit this result get a default. */
function fittingShares(model, wanted) {
  const state = { steps: null, chosen: null, cut: -1, words: false, part: "", root: false, image: true, theme: "", ...wanted };
  const within = (range, count) => Array.isArray(range) && range.every(Number.isInteger) && 0 <= range[0] && range[0] < range[1] && range[1] <= count;
  if (!model.steps || !within(state.steps, model.value.length)) state.steps = null;
  if (!within(state.chosen, model.tokens.pieces.length)) state.chosen = null;
  if (!(Number.isInteger(state.cut) && state.cut < model.cuts.length)) state.cut = -1;
  if (!model.tokens.word) state.words = false;
  if (!model.parts.includes(state.part) || state.cut >= 0) state.part = "";
  if (!["light", "dark"].includes(state.theme)) state.theme = "";
  return state;
}

function sharesToFragment(state) {
  const range = (pair) => (pair ? `${pair[0]}-${pair[1]}` : "");
  const fields = {
    answers: range(state.steps), tokens: range(state.chosen), layer: state.cut < 0 ? "" : state.cut,
    unit: state.words ? "words" : "", part: state.part, colours: state.root ? "root" : "", image: state.image ? "" : "hide", theme: state.theme,
  };
  return "#" + Object.entries(fields).filter(([, value]) => value !== "").map((pair) => pair.map(encodeURIComponent).join("=")).join("&");
}

/** Read the fields of a fragment; `fittingShares` has to check them. */
function sharesFromFragment(fragment) {
  const fields = {};
  const range = (text) => (/^\d{1,6}-\d{1,6}$/.test(text) ? text.split("-").map(Number) : null);
  for (const pair of fragment.replace(/^#/, "").split("&")) {
    const cut = pair.indexOf("=");
    if (cut < 0) continue;
    const name = pair.slice(0, cut);
    let value;
    try {
      value = decodeURIComponent(pair.slice(cut + 1));
    } catch {
      continue;
    }
    if (name === "answers") fields.steps = range(value);
    else if (name === "tokens") fields.chosen = range(value);
    else if (name === "layer") fields.cut = /^\d{1,4}$/.test(value) ? Number(value) : -1;
    else if (name === "unit") fields.words = value === "words";
    else if (name === "colours") fields.root = value === "root";
    else if (name === "image") fields.image = value !== "hide";
    else if (name === "part" || name === "theme") fields[name] = value;
  }
  return fields;
}

function shareControls(app) {
  const { segmented, slider } = forms();
  const { model } = app;
  return controlBar(app, () => {
    const { state } = app;
    const list = [];
    if (model.cuts.length) {
      const cuts = [-1, ...model.cuts.keys()];
      list.push(slider("Layer", "layer", cuts, state.cut + 1, {
        choose: (cut) => app.set({ cut }), step: (by) => app.set({ cut: app.state.cut + by }),
        said: cutName(model, state.cut), spoken: cutName(model, state.cut),
      }));
    }
    list.push(segmented("Tokens", "unit", [
      { value: false, text: "pieces", title: "the tokenizer’s pieces" },
      { value: true, text: "words", title: "pieces of a word summed", off: !model.tokens.word },
    ], state.words, (value) => app.set({ words: value })));
    if (model.parts.length > 1)
      list.push(segmented("Embeddings", "part", [
        { value: "", text: "all", title: "the whole share of a token" },
        ...model.parts.map((name) => ({ value: name, text: visible(name.replaceAll("_", " "), 20), title: "this part of a token’s share", off: state.cut >= 0 })),
      ], state.part, (value) => app.set({ part: value })));
    if (model.tokens.pictures)
      list.push(segmented("Image", "image", [
        { value: true, text: "shown", title: "the image that the model reads, in grey" }, { value: false, text: "hidden", title: "the colours alone" },
      ], state.image, (value) => app.set({ image: value })));
    list.push(segmented("Colours", "colours", [
      { value: false, text: "linear", title: "in proportion to the share" }, { value: true, text: "root", title: "by the square root, so that small shares can be seen" },
    ], state.root, (value) => app.set({ root: value })));
    return list;
  });
}

/** The scale of the colours, with its ends and zero. */
function shareLegend(app, box, largest = app.shown.largest, words = ["against ", " for"]) {
  const { css } = app.palette().difference;
  const bar = make("span", { className: "ns-bar ns-diverging" });
  const root = (part) => Math.sign(part) * Math.sqrt(Math.abs(part));
  const stops = Array.from({ length: 17 }, (_, i) => css[level(app.state.root ? root(i / 8 - 1) : i / 8 - 1, 1, true)]);
  bar.style.backgroundImage = `linear-gradient(to right, ${stops.join(", ")})`;
  const decimals = decimalsFor(largest);
  const scale = make("span", { className: "ns-ticked" }, bar, make("span", { className: "ns-zero", "aria-hidden": "true" }, "0"));
  box.replaceChildren(
    make("span", {}, `${words[0]}${amount(-largest, decimals)}`), scale, make("span", {}, `${amount(largest, decimals)}${words[1]}`));
  box.title = "from the most negative to the most positive share; zero is in the middle";
}

function sharesCsv(app) {
  const { shown, model } = app;
  let text = csvLine(["position", "token", "text", "side", "share"]);
  shown.entries.forEach((entry, at) => (text += csvLine([entry.at[0], entry.piece, entry.text, model.sides[entry.at[0]], digits(shown.shares[at])])));
  if (shown.others) text += csvLine(["", "", "", "other parts", digits(shown.others)]);
  return model.complete ? text + csvLine(["", "", "", "bias", digits(shown.bias)]) : text;
}

async function mountNormscope(root, data, { page = false } = {}) {
  root.classList.add("normscope");
  root.textContent = "";
  let model;
  try {
    model = await unpackShares(data);
  } catch (problem) {
    root.append(make("p", { className: "ns-problem", role: "alert" }, `This page could not be opened: ${problem.message}`));
    return null;
  }
  const app = { root, model, shown: null };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  app.state = fittingShares(model, page ? sharesFromFragment(location.hash) : {});
  app.printing = false;
  app.theme = () => (app.printing ? "light" : app.state.theme || (dark.matches ? "dark" : "light"));
  app.palette = () => PALETTES[app.theme()];
  app.active = () => root.getRootNode().activeElement; // in a notebook, the root may be in a shadow tree
  const tip = tooltip(root);
  const live = announcer();
  app.tip = tip.show;
  app.say = live.say;

  // ---- the frame

  const bar = shareControls(app);
  const help = keyHelp([...(model.tokens.pictures ? [["i", "hide or show the image below the colours"]] : []), ...SHARE_KEYS]);
  const themes = make("button", { type: "button", className: "ns-theme", on: { click: () => app.set({ theme: app.theme() === "dark" ? "light" : "dark" }) } }, "◐");
  const saves = ["png", "svg", "csv"].map((kind) => make("button", { type: "button", title: `save what is shown as ${kind.toUpperCase()}`, on: {
    click: async () => {
      const drawn = kind === "csv" ? "" : screenSvg([question, said, proof, textPanel], getComputedStyle(root).fontFamily, getComputedStyle(textPanel).backgroundColor);
      const blob = { csv: () => new Blob([sharesCsv(app)], { type: "text/csv;charset=utf-8" }), svg: () => new Blob([drawn], { type: "image/svg+xml" }), png: () => toPng(drawn) }[kind];
      download(`normscope-shares.${kind}`, await blob());
      app.say(`saved normscope-shares.${kind}`);
    },
  } }, kind.toUpperCase()));
  const helps = make("button", { type: "button", "aria-label": "keys", title: "keys (?)", on: { click: () => help.showModal() } }, "?");
  const fields = Object.fromEntries((model.signatures[0] ?? "").split("|").map((field) => [field.slice(0, field.indexOf(":")), field.slice(field.indexOf(":") + 1)]));

  const stepList = (model.steps ?? []).map((text, at) => ({ text, space: 1, at: [at], special: false }));
  const all = make("button", { type: "button", className: "ns-all", on: { click: () => app.set({ steps: null }) } }, "all together");
  const answers = passage(app, "Answer", {
    choose: (range) => app.set({ steps: range }),
    lines: (at) => [isolated(visible(stepList[at].text)), `value ${amount(model.value[at], decimalsFor(model.value[at]))}`],
  });
  const answerPanel = make("section", { className: "ns-panel ns-answer", hidden: !model.steps || model.steps.length < 2 },
    make("div", { className: "ns-panel-head" }, make("h3", {}, "Answer"), make("p", { className: "ns-hint" }, "Click a token to see what made it; drag for a range."), all), answers.element);

  const text = passage(app, "Text", {
    choose: (range) => app.set({ chosen: range && [app.shown.entries[range[0]].at[0], app.shown.entries[range[1] - 1].at.at(-1) + 1] }),
    lines: (at) => tokenLines(app, at),
  });
  const legend = make("p", { className: "ns-legend ns-scale" });
  const textTitle = make("h3");
  const biasChip = make("span", { className: "ns-chip" });
  const biasRow = make("p", { className: "ns-bias" }, biasChip, make("span", { className: "ns-hint" }));
  const chosenRow = make("p", { className: "ns-chosen-sum", "aria-live": "off" });
  const proof = make("p", { className: "ns-proof" });
  const question = make("p", { className: "ns-question", dir: "auto" });
  const said = make("h2", { className: "ns-headline", dir: "auto", "aria-live": "polite" });
  const pictures = make("div", { className: "ns-pictures" });
  let drawn = [];
  const textPanel = make("section", { className: "ns-panel" }, make("div", { className: "ns-panel-head" }, textTitle, legend), pictures, text.element, biasRow, chosenRow);
  const listBox = make("section", { className: "ns-card" });
  const aboutBox = make("section", { className: "ns-card ns-later" });
  const traces = { cuts: make("section", { className: "ns-panel ns-later" }), heads: make("section", { className: "ns-card ns-later" }), forwards: make("section", { className: "ns-panel ns-later" }) };
  for (const box of Object.values(traces)) box.hidden = !model.cuts.length;
  root.append(
    make("header", { className: "ns-head" },
      make("div", { className: "ns-brand" }, make("h1", {}, "normscope"), make("span", { className: "ns-model" }, visible(fields.model || "", 60).replace("∅", ""))),
      make("div", { className: "ns-tools" }, make("div", { className: "ns-saves" }, saves), themes, helps)),
    question, said, proof,
    bar.element,
    make("div", { className: "ns-body ns-shares" },
      make("div", { className: "ns-stage" }, answerPanel, textPanel, traces.cuts, traces.forwards),
      make("aside", { className: "ns-aside", "aria-label": "Numbers" }, listBox, traces.heads, aboutBox)),
    tip.element, live.element, help);
  aboutShares(app, aboutBox);

  /** Choose one entry, or none if it is the one that is chosen. */
  function chooseEntry(at) {
    const { at: positions } = app.shown.entries[at];
    const range = [positions[0], positions.at(-1) + 1];
    app.set({ chosen: String(range) === String(app.state.chosen) ? null : range });
  }

  // ---- showing the state

  let built = "";
  function show() {
    const { state } = app;
    app.shown = sharesOf(model, state);
    const { shown } = app;
    const { css, ink } = app.palette().difference;
    root.dataset.theme = app.theme();
    themes.setAttribute("aria-label", app.theme() === "dark" ? "light colours" : "dark colours");
    themes.title = `${themes.getAttribute("aria-label")} (t)`;
    bar.sync();
    if (built !== String(state.words)) {
      const held = text.element.contains(app.active());
      text.build(shown.entries, new Set(model.sides).size > 1);
      drawn = picturesOf(model.tokens, shown.entries).map((one) => ({
        ...one,
        drawn: patchPicture(app, one, {
          name: one.picture.name,
          choose: (at) => chooseEntry(at),
          hover: (event, at) => app.tip(event, at === null ? [] : tokenLines(app, at)),
        }),
      }));
      pictures.replaceChildren(...drawn.map(({ drawn: picture }) => picture.element));
      if (built === "") answers.build(stepList, false);
      if (held) text.element.querySelector(".ns-chip")?.focus();
      built = String(state.words);
    }
    const decimals = decimalsFor(shown.largest);
    const coloured = (share) => {
      const at = shareLevel(share, shown.largest, state.root);
      return { background: css[at], ink: ink[at] };
    };
    const chosen = covered(shown.entries, state.chosen);
    text.paint((at) => ({ ...coloured(shown.shares[at]), name: `${visible(shown.entries[at].text, 60)}, ${amount(shown.shares[at], decimals)}` }), chosen);
    answers.paint((at) => ({ background: "", ink: "", name: `${visible(stepList[at].text, 60)}, value ${amount(model.value[at], decimals)}` }), state.steps);
    const used = drawn.filter(({ cells }) => cells.some(({ at }) => shown.shares[at] !== 0));
    for (const one of drawn) {
      // The places of images in a text have no shares of their own before its first layer.
      one.drawn.element.hidden = used.length > 0 && !used.includes(one);
      one.drawn.paint({
        bare: !state.image, label: "shares of patches",
        colour: (at) => {
          const place = shareLevel(shown.shares[at], shown.largest, state.root);
          return { css: css[place], strength: Math.abs(place - 127.5) / 127.5 };
        },
        chosen: new Set(chosen ? shown.entries.map((_, at) => at).slice(...chosen) : []),
      });
    }
    all.setAttribute("aria-pressed", String(state.steps === null));
    textTitle.textContent = state.cut >= 0 ? `Shares of the states ${cutName(model, state.cut)}` : state.part ? `Shares of the ${state.part.replaceAll("_", " ")} embeddings` : "Shares of the input";
    shareLegend(app, legend);
    const bias = coloured(shown.bias);
    biasRow.hidden = !model.complete || (!shown.bias && Boolean(model.settings.baseline));
    biasChip.textContent = `bias ${amount(shown.bias, decimals)}`;
    biasChip.style.backgroundColor = bias.background;
    biasChip.style.color = bias.ink;
    biasRow.lastChild.textContent = state.cut >= 0 ? "from the layers above; belongs to no token" : "from the model’s parameters; belongs to no token";
    chosenRow.replaceChildren(...chosenWords(app, chosen));
    chosenRow.classList.toggle("ns-advice", !chosen);
    question.textContent = questionOf(model, state);
    showShareHeadline(app, said);
    proof.textContent = proofOf(model, state, shown);
    shareList(app, listBox);
    if (model.cuts.length) traceStrips(app, traces);
  }

  let writing = 0;
  app.set = (changes) => {
    app.state = fittingShares(model, { ...app.state, ...changes });
    show();
    app.say(spokenShares(app));
    if (page) {
      clearTimeout(writing);
      // Browsers limit how often the address may be changed.
      writing = setTimeout(() => {
        try {
          history.replaceState(null, "", sharesToFragment(app.state));
        } catch {
          // An embedded page may have no address of its own.
        }
      }, 120);
    }
    root.dispatchEvent(new CustomEvent("normscope:shown", { detail: { state: { ...app.state } } }));
  };

  const listen = page ? document : root;
  listen.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const { state } = app;
    const cut = (by) => app.set({ cut: Math.max(-1, Math.min(model.cuts.length - 1, state.cut + by)) });
    const answer = (by) => {
      const count = model.value.length;
      const next = state.steps ? Math.max(0, Math.min(count - 1, state.steps[0] + by)) : by > 0 ? 0 : count - 1;
      app.set({ steps: [next, next + 1] });
    };
    const does = {
      l: () => cut(1), L: () => cut(-1), s: () => answer(1), S: () => answer(-1), a: () => app.set({ steps: null }),
      w: () => app.set({ words: !state.words }), i: () => app.set({ image: !state.image }), r: () => app.set({ root: !state.root }),
      t: () => app.set({ theme: app.theme() === "dark" ? "light" : "dark" }),
      "?": () => help.showModal(),
      Escape: () => {
        text.forget();
        app.set({ chosen: null });
      },
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  });
  dark.addEventListener("change", show);
  const onPaper = (on) => {
    app.printing = on;
    root.classList.toggle("ns-print", on);
    show();
  };
  window.addEventListener("beforeprint", () => onPaper(true));
  window.addEventListener("afterprint", () => onPaper(false));
  if (page) window.addEventListener("hashchange", () => app.set({ ...fittingShares(model, {}), ...sharesFromFragment(location.hash) }));
  show();
  root.dataset.ready = "true";
  return app;
}

/** Which tokens support the answer most or count most against it, as strings and tokens. */
function shareSentence(app) {
  const { shown, model, state } = app;
  const places = shown.shares.map((_, at) => at);
  const best = places.reduce((most, at) => (shown.shares[at] > shown.shares[most] ? at : most), 0);
  const worst = places.reduce((least, at) => (shown.shares[at] < shown.shares[least] ? at : least), 0);
  const decimals = decimalsFor(shown.largest);
  const named = (at) => {
    const { text, special, at: positions } = shown.entries[at];
    const name = visible(text, 24);
    const repeated = shown.entries.some((other, place) => place !== at && other.text === text);
    return [{ token: special ? name : `"${name}"` }, `${repeated ? ` at position ${positions[0]}` : ""} (${amount(shown.shares[at], decimals)})`];
  };
  const place = state.cut >= 0 ? `${cutName(model, state.cut)[0].toUpperCase()}${cutName(model, state.cut).slice(1)}, ` : "";
  const [supported, opposed] = [shown.shares[best] > 0, shown.shares[worst] < 0];
  if (!supported && !opposed) return [`${place}${place ? "no" : "No"} token supports it or counts against it.`];
  if (!supported) return [place, ...named(worst), " counts most against it; no token supports it."];
  if (!opposed) return [place, ...named(best), " supports it most; no token counts against it."];
  return [place, ...named(best), " supports it most, and ", ...named(worst), " counts most against it."];
}

/** Show the sentence; unchanged text is left alone, so that screen readers do not repeat it. */
function showShareHeadline(app, box) {
  const pieces = shareSentence(app);
  if (box.textContent === pieces.map((piece) => piece.token ?? piece).join("")) return;
  box.replaceChildren(...pieces.map((piece) => (piece.token === undefined ? piece : make("bdi", {}, piece.token))));
}

/** The question: what is explained, and which of its tokens are chosen. */
function questionOf(model, state) {
  if (!state.steps) return visible(model.question, 400);
  const answer = `‘${visible(model.steps.slice(...state.steps).join(" "), 60)}’`;
  return model.settings.question ? `${visible(model.question, 400)}: ${answer}` : `What made the model write ${answer}`;
}

/** What a token's tooltip says. */
function tokenLines(app, at) {
  const { shown, model, state } = app;
  const entry = shown.entries[at];
  const share = shown.shares[at];
  const lines = [`${isolated(visible(entry.text))} (position ${entry.at[0]})`, [amount(share, decimalsFor(share)), partOf(shown.value, share, shown)].filter(Boolean).join(", ")];
  const spelled = (name) => {
    const count = model.tokens.pieces.length;
    const own = (start) => overSteps(model, state, "parts", start * count, count);
    const values = own(model.parts.indexOf(name));
    const sum = entry.at.reduce((whole, position) => whole + values[position], 0);
    return `${visible(name.replaceAll("_", " "), 20)} ${amount(sum, decimalsFor(share))}`;
  };
  if (state.cut < 0 && model.parts.length > 1) lines.push(model.parts.map(spelled).join(", "));
  if (model.arrays.spread && state.cut < 0 && !state.part && entry.at.length === 1 && stepsOf(model, state)[1] - stepsOf(model, state)[0] === 1)
    lines.push(`± ${amount(overSteps(model, state, "spread", entry.at[0], 1)[0], decimalsFor(share), false)} over baselines`);
  return lines;
}

/** The sum over the chosen tokens, in words. */
function chosenWords(app, chosen) {
  const { shown } = app;
  const unit = app.state.words ? "word" : "token";
  if (!chosen) return [make("span", { className: "ns-hint" }, matchMedia("(pointer: coarse)").matches ? "Tap two tokens to sum their range." : "Drag over tokens, or shift-click, to sum their shares.")];
  const [first, end] = chosen;
  const sum = total(shown.shares, chosen);
  const words = shown.entries.slice(first, end).map(({ text, space }, at) => (space && at ? " " : "") + text).join("");
  const part = partOf(shown.value, sum, shown);
  const count = end - first === 1 ? `1 ${unit} has ` : `${end - first} ${unit}s sum to `;
  return [count, make("b", { className: sum < 0 ? "ns-minus" : "ns-plus" }, amount(sum, decimalsFor(sum))), part ? ` (${part}): ` : ": ",
    make("bdi", { className: "ns-quoted" }, visible(words, 60))];
}

/** What a screen reader says after a change. */
function spokenShares(app) {
  const { shown, state, model } = app;
  const chosen = covered(shown.entries, state.chosen);
  if (chosen) {
    const sum = total(shown.shares, chosen);
    return `${shown.entries.slice(...chosen).map(({ text }) => visible(text, 24)).slice(0, 8).join(" ")}: ${amount(sum, decimalsFor(sum))}`;
  }
  const order = shown.shares.map((_, at) => at).sort((a, b) => Math.abs(shown.shares[b]) - Math.abs(shown.shares[a])).slice(0, 3);
  const answer = state.steps && model.steps ? `${model.steps.slice(...state.steps).map((text) => visible(text, 24)).join(" ")}: ` : "";
  const place = state.cut >= 0 ? `${cutName(model, state.cut)}. ` : "";
  return `${answer}${place}largest shares: ${order.map((at) => `${visible(shown.entries[at].text, 24)} ${amount(shown.shares[at], decimalsFor(shown.largest))}`).join(", ")}`;
}

function aboutShares(app, box) {
  const { model } = app;
  const facts = Object.entries(model.settings).filter(([name]) => name !== "question");
  box.append(
    make("h3", {}, "What this shows"),
    make("p", { className: "ns-hint" }, !model.complete
      ? `How much each token matters for the model’s value, by the method ${visible(model.settings.method ?? "", 40)}. ${model.signed ? "Blue tokens support the answer; orange ones count against it." : "The numbers have no sign: a token may support the answer or count against it."}`
      : model.settings.baseline
      ? "The difference between the model’s value for the text and for the baseline, divided among the tokens. Blue tokens raised it, orange ones lowered it."
      : "The model’s value, divided among the tokens that it read and its own biases. Blue tokens support the answer; orange ones count against it."),
    ...(model.trace_left_out ? [make("p", { className: "ns-hint" }, "The trace is too large for a page; the saved result has it.")] : []),
    make("dl", { className: "ns-facts" }, facts.flatMap(([name, value]) => [make("dt", {}, visible(name.replaceAll("_", " "), 30)), make("dd", {}, visible(value, 120))]),
      make("dt", {}, "error"), make("dd", {}, model.error === null ? "none: these scores have no sum" : `${errorText(model.error)}, the largest gap relative to the sum of all |shares|`)),
    make("details", {}, make("summary", {}, "Signature"),
      ...model.signatures.map((words) => make("p", { className: "ns-signature", dir: "ltr" }, visible(words || "none", 4000)))));
}

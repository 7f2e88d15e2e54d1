// The controls of the maps.

/** A layer with the range that it is of: "4 (0–5)". */
function layerRange({ layers }, layer) {
  return layers.length > 1 ? `${layer} (${layers[0]}–${layers[layers.length - 1]})` : String(layer);
}

function controls(app) {
  const { kept, segmented, dropdown, tick, slider } = forms();

  function hiding() {
    const group = kept("hide", null, () => make("fieldset", { className: "ns-group" }, make("legend", {}, "Hide"),
      make("div", { className: "ns-ticks" },
        tick("special tokens", "special", (on) => app.set({ special: !on })),
        tick("the token itself", "own", (on) => app.set({ own: !on })))));
    const [special, own] = group.querySelectorAll("input");
    special.checked = !app.state.special;
    own.checked = !app.state.own;
    own.disabled = app.part.tokens !== app.part.keys;
    return group;
  }

  /** On a phone, the controls other than the layer are behind a button. */
  function more() {
    return kept("more", null, () => {
      const button = make("button", {
        type: "button", className: "ns-more", "aria-expanded": "false",
        on: { click: () => button.setAttribute("aria-expanded", String(bar.element.classList.toggle("ns-open"))) },
      }, "Settings");
      return button;
    });
  }

  function layers() {
    const { part, state } = app;
    return slider("Layer", "layer", part.layers, part.layers.indexOf(state.layer), {
      choose: (layer) => app.set({ layer }),
      step: (by) => app.step("layer", by),
      said: layerRange(part, state.layer),
      spoken: `layer ${layerRange(part, state.layer)}`,
    });
  }

  function build() {
    const { model, part, state } = app;
    const map = part.maps.find((entry) => entry.name === state.map);
    const heads = map.heads ?? [];
    const list = [];
    const short = (entry) => (entry.sum ?? entry.each).short;
    if (model.parts.length > 1)
      list.push(segmented("Part", "part", model.parts.map(({ name }) => ({ value: name, text: name })), state.part, (value) => app.set({ part: value, query: null, key: null }), "ns-part"));
    list.push(segmented("Map", "map", part.maps.map((entry) => ({ value: entry.name, text: short(entry), title: (entry.sum ?? entry.each).title })),
      state.map, (value) => app.set({ map: value, versus: app.state.versus === value ? "" : app.state.versus }), "ns-story"));
    list.push(layers());
    const choices = [...(map.sum ? [{ value: "sum", text: "together" }] : []), ...heads.map((head) => ({ value: head, text: `head ${head}` }))];
    list.push(dropdown("Heads", "head", choices, map.each ? state.head : "sum", (value) => app.set({ head: value === "sum" ? "sum" : Number(value) })));
    list.push(dropdown("Compare with", "versus", [{ value: "", text: "nothing" },
      ...part.maps.filter((entry) => entry !== map).map((entry) => ({ value: entry.name, text: short(entry) }))], state.versus, (value) => app.set({ versus: value })));
    list.push(segmented("Numbers", "scale", [
      { value: "share", text: "share", title: "shares of each row, in percent" }, { value: "absolute", text: "absolute", title: "the weight or the norm itself" },
    ], state.scale, (value) => app.set({ scale: value })));
    const unknown = !model.tokens[part.tokens].word;
    list.push(segmented("Tokens", "unit", [
      { value: false, text: "pieces", title: "the tokenizer’s pieces" }, { value: true, text: "words", title: "pieces of a word merged", off: unknown },
    ], state.words, (value) => app.set({ words: value })));
    list.push(segmented("Colours", "colours", [
      { value: false, text: "linear", title: "in proportion to the value" }, { value: true, text: "root", title: "by the square root, so that small values can be seen" },
    ], app.rooted(), (value) => app.set({ root: value })));
    list.push(hiding());
    list.push(more());
    return list;
  }

  const bar = controlBar(app, build);
  return bar;
}

/** What belongs to one view: lines and heads of the token view, zoom of the matrix. */
function viewTools(app) {
  const made = forms();
  const tools = controlBar(app, () => {
    const { part, state } = app;
    if (state.view === "overview") return [];
    if (state.view === "matrix") return [zoomButtons(app, made)];
    if (state.view === "picture")
      return [made.segmented("Image", "image", [
        { value: true, text: "shown", title: "the image that the model reads, in grey" }, { value: false, text: "hidden", title: "the colours alone" },
      ], state.image, (value) => app.set({ image: value }))];
    const names = { 0: isDense(app.fields[0]) ? `the ${STRONGEST} strongest` : "automatic", [ALL]: "all" };
    const list = [made.dropdown("Lines", "lines", LINE_COUNTS.map((count) => ({ value: count, text: names[count] ?? `up to ${count}` })), state.lines, (value) => app.set({ lines: Number(value) }))];
    if (headsOf(part, state).length > 1) list.push(headChips(app, made));
    return list;
  });
  tools.element.className = "ns-viewtools";
  return tools;
}

const PICTURE_KEYS = [
  ["0", "picture"],
  ["i", "hide or show the image in the picture"],
];

const KEYS = [
  ["1 2 3", "token view, matrix, overview"],
  ["l  L", "next layer, previous layer"],
  ["h  H", "next head, previous head"],
  ["m  M", "next map, previous map"],
  ["c", "compare with the next map"],
  ["p", "next part (encoder, decoder, cross)"],
  ["n", "shares of the row or absolute numbers"],
  ["r", "colours in proportion or by the square root"],
  ["w", "words or pieces"],
  ["x", "hide or show special tokens"],
  ["d", "hide or show the token itself"],
  ["t", "dark or light"],
  ["← → ↑ ↓", "move between tokens, or between cells of the matrix"],
  ["Home End", "first and last token"],
  ["+ − 0", "in the matrix: zoom in, zoom out, show all of it"],
  ["⇧ arrows", "in the matrix: move the part that is shown"],
  ["Esc", "clear the selection"],
  ["?", "this list"],
];

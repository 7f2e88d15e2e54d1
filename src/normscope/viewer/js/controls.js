// The controls: plain form elements, so that keyboards and screen readers know them.

let instances = 0;

function controls(app) {
  const prefix = `ns${++instances}`;
  const bar = make("div", { className: "ns-controls" });

  /** Radio buttons in a row; a choice is {value, text, title, off}. */
  function segmented(legend, name, choices, chosen, choose, extra = "") {
    const group = make("fieldset", { className: `ns-group ${extra}` }, make("legend", {}, legend));
    const row = make("div", { className: "ns-segments" });
    for (const { value, text, title, off } of choices)
      row.append(make("label", { title },
        make("input", {
          type: "radio", name: `${prefix}-${name}`, value: String(value), checked: value === chosen, disabled: Boolean(off),
          on: { change: () => choose(value) },
        }), make("span", {}, text)));
    group.append(row);
    return group;
  }

  function dropdown(legend, name, choices, chosen, choose) {
    const select = make("select", { id: `${prefix}-${name}`, name, on: { change: () => choose(select.value) } });
    for (const { value, text } of choices) select.append(make("option", { value: String(value), selected: value === chosen }, text));
    return make("div", { className: "ns-group" }, make("label", { htmlFor: select.id }, legend), select);
  }

  function tick(text, name, on, choose, off = false) {
    return make("label", { className: "ns-tick" },
      make("input", { type: "checkbox", name, checked: on, disabled: off, on: { change: (event) => choose(event.target.checked) } }),
      make("span", {}, text));
  }

  function layers() {
    const { part, state } = app;
    const at = part.layers.indexOf(state.layer);
    const range = make("input", {
      type: "range", id: `${prefix}-layer`, name: "layer", min: 0, max: part.layers.length - 1, step: 1, value: String(at),
      "aria-valuetext": `layer ${state.layer}`, on: { input: () => app.set({ layer: part.layers[Number(range.value)] }) },
    });
    const shift = (by, sign, label) => make("button", {
      type: "button", className: "ns-step", "aria-label": label, disabled: part.layers[at + by] === undefined,
      on: { click: () => app.step("layer", by) },
    }, sign);
    return make("div", { className: "ns-group ns-layers" },
      make("label", { htmlFor: range.id }, "Layer"),
      make("div", { className: "ns-slider" }, shift(-1, "‹", "previous layer"), range, shift(1, "›", "next layer"),
        make("span", { "aria-hidden": "true" }, `${state.layer} of ${part.layers[part.layers.length - 1]}`)));
  }

  function build() {
    const { model, part, state } = app;
    const map = part.maps.find((one) => one.name === state.map);
    const heads = map.heads ?? [];
    const groups = [];
    const short = (one) => (one.sum ?? one.each).short;
    if (model.parts.length > 1)
      groups.push(segmented("Part", "part", model.parts.map((one) => ({ value: one.name, text: one.name })), state.part, (value) => app.set({ part: value, query: null, key: null }), "ns-part"));
    groups.push(segmented("Map", "map", part.maps.map((one) => ({ value: one.name, text: short(one), title: (one.sum ?? one.each).title })),
      state.map, (value) => app.set({ map: value, versus: state.versus === value ? "" : state.versus }), "ns-story"));
    groups.push(layers());
    const choices = [...(map.sum ? [{ value: "sum", text: "together" }] : []), ...heads.map((head) => ({ value: head, text: `head ${head}` }))];
    const head = dropdown("Heads", "head", choices, map.each ? state.head : "sum", (value) => app.set({ head: value === "sum" ? "sum" : Number(value) }));
    head.querySelector("select").disabled = choices.length < 2;
    groups.push(head);
    groups.push(dropdown("Compare with", "versus", [{ value: "", text: "nothing" },
      ...part.maps.filter((one) => one !== map).map((one) => ({ value: one.name, text: short(one) }))], state.versus, (value) => app.set({ versus: value })));
    groups.push(segmented("Numbers", "scale", [
      { value: "share", text: "share", title: "share of what a token takes" }, { value: "absolute", text: "absolute", title: "the weight or the norm itself" },
    ], state.scale, (value) => app.set({ scale: value })));
    const unknown = !model.tokens[part.tokens].word;
    groups.push(segmented("Tokens", "unit", [
      { value: false, text: "pieces", title: "the tokenizer’s pieces" }, { value: true, text: "words", title: "pieces of a word merged", off: unknown },
    ], state.words, (value) => app.set({ words: value })));
    groups.push(make("fieldset", { className: "ns-group" }, make("legend", {}, "Hide"),
      make("div", { className: "ns-ticks" },
        tick("special tokens", "special", !state.special, (on) => app.set({ special: !on })),
        tick("the token itself", "own", !state.own, (on) => app.set({ own: !on }), part.tokens !== part.keys))));
    return groups;
  }

  return {
    element: bar,
    /** Rebuilt when the choices change, with the focus kept on the control that had it. */
    sync() {
      const active = bar.contains(app.active()) ? app.active() : null;
      const name = active?.name;
      const label = active?.getAttribute("aria-label");
      bar.replaceChildren(...build());
      if (!active) return;
      const same = name
        ? bar.querySelector(active.type === "radio" ? `input[name="${name}"]:checked` : `[name="${name}"]`)
        : [...bar.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === label);
      (same?.disabled ? bar.querySelector("input[type=range]") : same)?.focus();
    },
  };
}

const KEYS = [
  ["1 2 3", "token view, matrix, overview"],
  ["l  L", "next layer, previous layer"],
  ["h  H", "next head, previous head"],
  ["m  M", "next map, previous map"],
  ["c", "compare with the next map"],
  ["p", "next part (encoder, decoder, cross)"],
  ["n", "share of the row or absolute numbers"],
  ["w", "words or pieces"],
  ["x", "hide or show special tokens"],
  ["d", "hide or show the token itself"],
  ["t", "dark or light"],
  ["← → ↑ ↓", "among tokens, or cells of the matrix"],
  ["Home End", "first and last token"],
  ["Esc", "let go of the chosen token"],
  ["?", "this list"],
];

function keyHelp() {
  const close = make("button", { type: "button" }, "Close");
  const dialog = make("dialog", { className: "ns-help", "aria-label": "Keys" },
    make("h2", {}, "Keys"),
    make("table", {}, make("tbody", {}, KEYS.map(([keys, does]) => make("tr", {},
      make("th", { scope: "row" }, keys.split(/\s+/).flatMap((key) => [make("kbd", {}, key), " "])), make("td", {}, does))))),
    make("p", { className: "ns-hint" }, "The address of the page keeps what is shown: copy it to share the view together with the file."),
    close);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}

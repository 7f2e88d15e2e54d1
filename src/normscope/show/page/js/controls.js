// The controls: plain form elements, which keyboards and screen readers can use.

let instances = 0;

function controls(app) {
  const prefix = `ns${++instances}`;
  const bar = make("div", { className: "ns-controls" });
  const groups = new Map();

  /** Return the existing group while its choices stay the same: a slider that is replaced stops being dragged. */
  function kept(name, choices, create) {
    const key = JSON.stringify(choices);
    if (groups.get(name)?.key !== key) groups.set(name, { key, group: create() });
    return groups.get(name).group;
  }

  /** Radio buttons in a row; a choice is {value, text, title, off}. */
  function segmented(legend, name, choices, chosen, choose, extra = "") {
    const group = kept(name, choices, () => make("fieldset", { className: `ns-group ${extra}` }, make("legend", {}, legend),
      make("div", { className: "ns-segments" }, choices.map(({ value, text, title, off }) => make("label", { title },
        make("input", {
          type: "radio", name: `${prefix}-${name}`, value: String(value), disabled: Boolean(off),
          on: { change: () => choose(value) },
        }), make("span", {}, text))))));
    for (const input of group.querySelectorAll("input")) input.checked = input.value === String(chosen);
    return group;
  }

  function dropdown(legend, name, choices, chosen, choose) {
    const group = kept(name, null, () => {
      const select = make("select", { id: `${prefix}-${name}`, name, on: { change: () => choose(select.value) } });
      return make("div", { className: "ns-group" }, make("label", { htmlFor: select.id }, legend), select);
    });
    const select = group.lastChild;
    const key = JSON.stringify(choices);
    if (select.dataset.choices !== key) select.replaceChildren(...choices.map(({ value, text }) => make("option", { value: String(value) }, text)));
    select.dataset.choices = key;
    select.value = String(chosen);
    select.disabled = choices.length < 2;
    return group;
  }

  function tick(text, name, choose) {
    return make("label", { className: "ns-tick" },
      make("input", { type: "checkbox", name, on: { change: (event) => choose(event.target.checked) } }),
      make("span", {}, text));
  }

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

  function layers() {
    const { part, state } = app;
    const at = part.layers.indexOf(state.layer);
    const group = kept("layer", part.layers, () => {
      const range = make("input", {
        type: "range", id: `${prefix}-layer`, name: "layer", min: 0, max: part.layers.length - 1, step: 1,
        on: { input: () => app.set({ layer: part.layers[Number(range.value)] }) },
      });
      const shift = (by, sign, label) => make("button", {
        type: "button", className: "ns-step", "aria-label": label, on: { click: () => app.step("layer", by) },
      }, sign);
      return make("div", { className: "ns-group ns-layers" },
        make("label", { htmlFor: range.id }, "Layer"),
        make("div", { className: "ns-slider" }, shift(-1, "‹", "previous layer"), range, shift(1, "›", "next layer"),
          make("span", { "aria-hidden": "true" })));
    });
    const [back, range, on, said] = group.lastChild.children;
    range.value = String(at);
    range.setAttribute("aria-valuetext", `layer ${state.layer}`);
    back.disabled = at === 0;
    on.disabled = at === part.layers.length - 1;
    said.textContent = `${state.layer} of ${part.layers[part.layers.length - 1]}`;
    return group;
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
      { value: "share", text: "share", title: "share of what a token takes" }, { value: "absolute", text: "absolute", title: "the weight or the norm itself" },
    ], state.scale, (value) => app.set({ scale: value })));
    const unknown = !model.tokens[part.tokens].word;
    list.push(segmented("Tokens", "unit", [
      { value: false, text: "pieces", title: "the tokenizer’s pieces" }, { value: true, text: "words", title: "pieces of a word merged", off: unknown },
    ], state.words, (value) => app.set({ words: value })));
    list.push(hiding());
    return list;
  }

  return {
    element: bar,
    /** Replace only the groups that have changed, and keep the focus on its control. */
    sync() {
      const active = bar.contains(app.active()) ? app.active() : null;
      build().forEach((group, at) => {
        const old = bar.children[at];
        if (!old) bar.append(group);
        else if (old !== group) old.replaceWith(group);
      });
      if (!active) return;
      const same = active.type === "radio" ? bar.querySelector(`input[name="${active.name}"]:checked`) : active;
      const next = bar.contains(same) && !same.disabled ? same : bar.querySelector("input[type=range]");
      if (next !== app.active()) next.focus();
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
  ["Esc", "deselect the token"],
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

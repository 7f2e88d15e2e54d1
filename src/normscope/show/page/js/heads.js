// Several heads at once: up to seven, each with a colour of its own for its lines.

const MOST_HEADS = 7;

/** The chosen heads of a map as {head, colour, field}; none for a map without single heads. */
function colouredHeads(app, field) {
  const { model, part, state } = app;
  if (field.difference || !state.heads.length) return [];
  const map = part.maps.find(({ name }) => name === field.name);
  if (!map.each) return [];
  const layer = part.layers.indexOf(state.layer);
  const { categories } = app.palette();
  return state.heads.filter((head) => map.heads.includes(head)).map((head, at) => ({
    head, colour: categories[at], field: fieldOf(model, part, field.name, layer, { ...state, head }),
  }));
}

/** Check boxes, one for each head; the chosen ones have the colours of their lines. */
function headChips(app, { kept }) {
  const { part, state } = app;
  const heads = headsOf(part, state);
  const group = kept("heads", heads, () => make("fieldset", { className: "ns-heads" }, make("legend", {}, "Heads in colour"),
    make("div", { className: "ns-chips" }, heads.map((head) => make("label", { title: `lines of head ${head}` },
      make("input", { type: "checkbox", name: `colour-${head}`, "aria-label": `head ${head} in colour`, on: { change: (event) => toggle(head, event.target.checked) } }),
      make("span", {}, String(head)))))));
  const toggle = (head, on) => app.set({ heads: on ? [...app.state.heads, head] : app.state.heads.filter((other) => other !== head) });
  const { categories } = app.palette();
  for (const [at, label] of [...group.querySelectorAll("label")].entries()) {
    const place = state.heads.indexOf(heads[at]);
    const [input, name] = label.children;
    input.checked = place >= 0;
    input.disabled = place < 0 && state.heads.length >= MOST_HEADS;
    name.style.backgroundColor = place >= 0 ? categories[place] : "";
    name.style.color = place >= 0 ? inkOn(categories[place]) : "";
  }
  return group;
}

/** The heads that can be shown in colour: those of the first map that has single heads. */
function headsOf(part, state) {
  const named = [state.map, state.versus].map((name) => part.maps.find((map) => map.name === name));
  return named.find((map) => map?.each)?.heads ?? [];
}

/** Black or white, whichever is legible on a colour. */
function inkOn(hex) {
  const [r, g, b] = parse(hex).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** The legend of the colours. */
function headLegend(box, heads) {
  box.hidden = !heads.length;
  box.replaceChildren(...heads.map(({ head, colour }) => {
    const swatch = make("span", { className: "ns-swatch" });
    swatch.style.backgroundColor = colour;
    return make("span", {}, swatch, `head ${head}`);
  }));
}

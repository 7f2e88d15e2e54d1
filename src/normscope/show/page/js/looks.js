// The picture view: what a patch or a token receives, over the images; other tokens beside them.

function picturePanel(app) {
  const title = make("h3");
  const scale = make("p", { className: "ns-legend ns-scale" });
  const legend = make("p", { className: "ns-legend ns-says" });
  const pictures = make("div", { className: "ns-pictures" });
  const rest = make("div", { className: "ns-rest-tokens" });
  const element = make("section", { className: "ns-panel ns-looks" }, make("div", { className: "ns-panel-head" }, title, scale, legend), pictures, rest);
  let field = null;
  let shown = []; // {side, picture}
  let chips = [];
  let own = { vector: [], largest: 0 };
  let end = 0;

  function tokensOf(side) {
    return app.model.tokens[side === "key" ? field.variant.keys : app.part.tokens];
  }

  function build() {
    shown = [];
    chips = [];
    const content = [];
    // With one list for both, a patch is chosen as the query; its row is shown on the same picture.
    for (const side of field.self ? ["key"] : ["key", "query"]) {
      const list = side === "key" ? field.keys : field.queries;
      const lit = new Set(side === "key" ? field.cols : field.rows);
      for (const one of picturesOf(tokensOf(side), list)) {
        const cells = one.cells.filter(({ at }) => lit.has(at));
        if (!cells.length) continue;
        const picked = field.self ? "query" : side;
        const drawn = patchPicture(app, { ...one, cells }, {
          name: one.picture.name,
          choose: (at) => app.pin(picked, at),
          hover: (event, at) => {
            app.hover(at === null ? null : { side: picked, index: at });
            app.tip(event, at === null ? [] : note(list, at));
          },
        });
        shown.push({ side, picked, drawn, list });
        content.push(drawn.element);
      }
      addChips(side, list, lit);
    }
    pictures.replaceChildren(...content);
  }

  function note(list, at) {
    return [...tokenNote(list[at], at), ...(own.vector[at] === undefined ? [] : [field.text(own.vector[at])])];
  }

  /** The tokens of a side that are no patches, as a row. */
  function addChips(side, list, lit) {
    const places = tokensOf(side).places;
    const others = list.map((_, at) => at).filter((at) => lit.has(at) && !places?.[list[at].at[0]]);
    if (side === "key") rest.replaceChildren();
    if (!others.length) return;
    const picked = field.self ? "query" : side;
    const names = sideNames(field);
    const row = make("div", { className: "ns-row", role: "listbox", "aria-label": field.self ? "Other tokens" : names[side] });
    for (const at of others) {
      const chip = make("span", { className: `ns-token${list[at].special ? " ns-special" : ""}${list[at].joined ? " ns-joined" : ""}`, role: "option", tabIndex: row.children.length ? -1 : 0 },
        make("bdi", {}, visible(list[at].text, 40)), make("small", { "aria-hidden": "true" }));
      chip.addEventListener("click", () => app.pin(picked, at));
      chip.addEventListener("pointerenter", (event) => {
        if (event.pointerType === "touch") return;
        app.hover({ side: picked, index: at });
        app.tip(event, note(list, at));
      });
      chip.addEventListener("pointerleave", () => {
        app.hover(null);
        app.tip(null);
      });
      chip.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          app.pin(picked, at);
        }
        const next = step && row.children[[...row.children].indexOf(chip) + step];
        if (!next) return;
        event.preventDefault();
        chip.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      });
      row.append(chip);
      chips.push({ side, picked, at, chip });
    }
    rest.append(make("p", { className: "ns-side" }, field.self ? "Other tokens" : names[side]), row);
  }

  function largest() {
    const focus = app.focus();
    const vector = vectorOf(field, focus);
    const order = ranked(field, focus, vector);
    own = { focus, vector, largest: order.length ? Math.abs(vector[order[0]]) : 0 };
    return own.largest;
  }

  function paint(max) {
    end = max;
    const { focus, vector } = own;
    const ramp = coloursOf(app, field);
    const lit = focus?.side === "key" ? "query" : "key";
    const colour = (side) => (at) => {
      if (side !== lit || (field.own && focus?.index === at)) return { css: ramp.css[level(0, 1, field.signed)], strength: 0 };
      const shade = level(vector[at] ?? 0, max, field.signed, app.rooted());
      return { css: ramp.css[shade], strength: field.signed ? Math.abs(shade - 127.5) / 127.5 : shade / 255 };
    };
    const isChosen = (picked, at) => Boolean(focus) && focus.side === picked && focus.index === at;
    for (const { side, picked, drawn, list } of shown)
      drawn.paint({
        colour: colour(side), bare: !app.state.image, label: legendText(focus),
        chosen: new Set(list.map((_, at) => at).filter((at) => isChosen(picked, at))),
      });
    for (const { side, picked, at, chip } of chips) {
      const shade = side === lit && !(field.own && focus?.index === at) ? level(vector[at] ?? 0, max, field.signed, app.rooted()) : -1;
      chip.style.backgroundColor = shade < 0 ? "" : ramp.css[shade];
      chip.style.color = shade < 0 ? "" : ramp.ink[shade];
      chip.lastChild.textContent = side === lit && focus && Math.abs(vector[at] ?? 0) > own.largest * 0.05 ? brief(field, vector[at]) : "";
      chip.classList.toggle("ns-chosen", isChosen(picked, at));
      chip.setAttribute("aria-selected", String(isChosen(picked, at)));
    }
    scaleBar(app, scale, field, max);
    legend.textContent = own.largest > 0 ? legendText(focus) : "nothing to show";
  }

  function legendText(focus) {
    const list = focus?.side === "key" ? field.keys : field.queries;
    const name = focus && isolated(visible(list[focus.index]?.text ?? "residual", 24));
    if (!focus) return "Mean over all tokens. Click a patch or a token to see what it receives.";
    return focus.side === "key" ? `From ${name} to each.` : `From each to ${name}.`;
  }

  return {
    element,
    show(now) {
      field = now;
      title.textContent = panelTitle(app, field);
      build();
    },
    change(now) {
      field = now;
      title.textContent = panelTitle(app, field);
    },
    largest,
    paint,
    resized() {},
    svg(into, x, y) {
      const inks = app.inks();
      scaleLine(app, into, field, end, x, y);
      let down = y + 30;
      into.append(svg("text", { x, y: down, "font-size": 11, fill: inks.muted }, legendText(own.focus)));
      down += 12;
      let width = 300;
      for (const { drawn } of shown) {
        const size = drawn.svg(into, x, down);
        down += size.height + 12;
        width = Math.max(width, size.width);
      }
      let across = x;
      const context = document.createElement("canvas").getContext("2d");
      context.font = `12px ${app.font()}`;
      for (const { chip } of chips) {
        const text = chip.firstChild.textContent;
        const wide = context.measureText(text).width + 12;
        if (across + wide > x + width) {
          across = x;
          down += 26;
        }
        const style = getComputedStyle(chip);
        into.append(svg("rect", { x: round(across), y: down, width: round(wide), height: 20, rx: 5, fill: style.backgroundColor, stroke: chip.classList.contains("ns-chosen") ? inks.accent : inks.line }));
        into.append(svg("text", { x: round(across + wide / 2), y: down + 14, "text-anchor": "middle", "font-size": 12, fill: style.color }, text));
        across += wide + 5;
      }
      return { width, height: down + 30 - y };
    },
  };
}

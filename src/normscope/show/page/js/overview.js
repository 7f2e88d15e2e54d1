// All layers at once: by map, and by head of the selected map. Every thumbnail is a button.

const THUMB = 72; // pixels a side; larger maps are pooled by their largest cell

function overviewPanel(app) {
  const element = make("div", { className: "ns-overview" });
  const large = preview(app.root);
  let buttons = [];
  let job = 0;
  // Shares of all pictures have one scale, from 0 to 100%; norms of different layers have none in common.
  const end = (field) => (field.share ? 1 : field.max);
  const root = true; // else small shares could not be seen on a scale up to 100%

  function gridOf(caption, columns, state) {
    const { part } = app;
    const grid = make("div", { className: "ns-thumbs", role: "group", "aria-label": caption });
    grid.style.setProperty("--columns", columns.length);
    grid.append(make("span", { className: "ns-corner" }, "layer"));
    for (const column of columns) grid.append(make("span", { className: "ns-column", title: column.title }, column.head));
    part.layers.forEach((layer, at) => {
      grid.append(make("span", { className: "ns-layer" }, String(layer)));
      for (const column of columns) {
        const canvas = make("canvas", { "aria-hidden": "true" });
        const thumb = { canvas, at, layer, column, state: { ...state, ...column.change } };
        const button = make("button", {
          type: "button", className: "ns-thumb", "aria-label": `layer ${layer}, ${column.title}`,
          on: {
            click: () => {
              large.hide();
              const compared = state.versus && [state.map, state.versus].includes(column.change.map);
              app.set({ layer, view: app.back, ...(compared ? { head: column.change.head } : { versus: "", ...column.change }) });
            },
            pointerenter: (event) => event.pointerType !== "touch" && enlarge(thumb),
            pointerleave: () => large.hide(),
            focus: () => thumb.button.matches(":focus-visible") && enlarge(thumb),
            blur: () => large.hide(),
            keydown: (event) => event.key === "Escape" && large.hide(),
          },
        }, canvas);
        thumb.button = button;
        grid.append(button);
        buttons.push(thumb);
      }
    });
    element.append(make("section", { className: "ns-panel" },
      make("div", { className: "ns-panel-head" }, make("h3", {}, caption), legend()), grid));
  }

  /** Show a thumbnail large, with its largest cell in words. */
  function enlarge(thumb) {
    const field = fieldOf(app.model, app.part, thumb.state.map, thumb.at, thumb.state);
    const [query, key] = largestCell(field);
    large.show(thumb.button, {
      caption: `layer ${thumb.layer}, ${thumb.column.title}`, field,
      picture: cellsPicture(field, coloursOf(app, field), end(field), { root, limit: 2 * PREVIEW }),
      about: `Largest: ${cellNote(field, { query, key }).join(", ")}`,
    });
  }

  function legend() {
    const field = { signed: false, share: app.state.scale === "share", text: (value) => `${100 * value}%` };
    const box = make("p", { className: "ns-legend ns-scale" });
    if (!field.share) return make("p", { className: "ns-legend" }, "Each picture has its own scale.");
    scaleBar({ ...app, rooted: () => root }, box, field, 1, "one scale; colours by the square root");
    return box;
  }

  function build() {
    const { part, state } = app;
    buttons = [];
    element.replaceChildren(large.element);
    const together = part.maps.filter((map) => map.sum);
    if (together.length)
      gridOf("By map, heads together",
        together.map((map) => ({ head: map.sum.short, title: map.sum.title, change: { map: map.name, head: "sum" } })), state);
    const map = part.maps.find((entry) => entry.name === state.map);
    const headed = map.each ? map : part.maps.find((entry) => entry.each);
    if (headed)
      gridOf(`By head: ${headed.each.short}`,
        headed.heads.map((head) => ({ head: String(head), title: `${headed.each.short} of head ${head}`, change: { map: headed.name, head } })), state);
  }

  function draw(thumb) {
    const field = fieldOf(app.model, app.part, thumb.state.map, thumb.at, thumb.state);
    const picture = cellsPicture(field, coloursOf(app, field), end(field), { root, limit: THUMB });
    thumb.canvas.width = picture.width;
    thumb.canvas.height = picture.height;
    thumb.canvas.getContext("2d").drawImage(picture, 0, 0);
    thumb.canvas.classList.toggle("ns-sharp", picture.width < THUMB);
  }

  return {
    element,
    show: build,
    change: build,
    largest: () => 0,
    /** Draw a few thumbnails in each frame, so that hundreds of them do not block the page. */
    paint() {
      const mine = ++job;
      const { state } = app;
      for (const { button, layer, column } of buttons) {
        const current = layer === state.layer && column.change.map === state.map && column.change.head === state.head;
        button.classList.toggle("ns-here", current);
        if (current) button.setAttribute("aria-current", "true");
        else button.removeAttribute("aria-current");
      }
      let next = 0;
      const some = () => {
        if (mine !== job || !element.isConnected) return;
        const start = performance.now();
        while (next < buttons.length && performance.now() - start < 24) draw(buttons[next++]);
        if (next < buttons.length) requestAnimationFrame(some);
        else element.dataset.drawn = String(buttons.length);
      };
      delete element.dataset.drawn;
      some();
    },
    resized() {},
    finish() {
      job++;
      buttons.forEach(draw);
    },
    panels: () => buttons,
    ways: () => [...new Set(buttons.map(({ column }) => (column.change.head === "sum" ? "by map" : "by head")))],
    svg(into, x, y) {
      this.finish();
      for (const grid of element.querySelectorAll(".ns-thumbs")) grid.scrollLeft = 0;
      const origin = element.getBoundingClientRect();
      for (const element of this.element.querySelectorAll("h3, .ns-legend span, p.ns-legend:not(.ns-scale), .ns-corner, .ns-column, .ns-layer")) {
        const own = getComputedStyle(element);
        const { right } = element.getBoundingClientRect();
        for (const { text, box } of linesOf(element.firstChild))
          into.append(svg("text", {
            x: round(x + Math.min(box.left, right - box.width) - origin.left + box.width / 2), y: round(y + box.top - origin.top + box.height * 0.77), "text-anchor": "middle",
            "font-size": parseFloat(own.fontSize), "font-weight": own.fontWeight, fill: own.color,
          }, text));
      }
      for (const bar of element.querySelectorAll("canvas.ns-bar")) {
        const box = bar.getBoundingClientRect();
        into.append(svg("image", { x: round(x + box.left - origin.left), y: round(y + box.top - origin.top), width: round(box.width), height: round(box.height), preserveAspectRatio: "none", href: enlarged(bar) }));
      }
      for (const { button, canvas } of buttons) {
        const box = button.getBoundingClientRect();
        into.append(svg("image", {
          x: round(x + box.left - origin.left), y: round(y + box.top - origin.top), width: round(box.width), height: round(box.height),
          preserveAspectRatio: "none", "image-rendering": "pixelated", href: enlarged(canvas),
        }));
      }
      const right = Math.max(...buttons.map(({ button }) => button.getBoundingClientRect().right)); // on a phone, beyond the screen
      return { width: Math.max(origin.width, right - origin.left), height: origin.height };
    },
  };
}

/** The query and the key of the largest cell. */
function largestCell(field) {
  let best = [field.rows[0], field.cols[0]];
  for (const i of field.rows) for (const j of field.cols) if (field.value(i, j) > field.value(...best)) best = [i, j];
  return best;
}

// The token view: keys above, queries below, curves between them.

const LINES = 40; // the most that are drawn of a short text
const DENSE = 40; // from this many tokens on, tokens are smaller and only the strongest lines are drawn
const STRONGEST = 12; // the lines of a long text, unless more are asked for
const MANY = 120; // with more tokens, both rows scroll

/** How many lines a panel draws at most. */
function lineLimit(state, field) {
  return state.lines || (isDense(field) ? STRONGEST : LINES);
}

function isDense(field) {
  return Math.max(field.rows.length, field.cols.length) >= DENSE;
}

function tokensPanel(app) {
  const keys = make("div", { className: "ns-row ns-keys" });
  const queries = make("div", { className: "ns-row ns-queries" });
  const canvas = make("canvas", { className: "ns-lines", "aria-hidden": "true" });
  const pair = make("div", { className: "ns-pair" }, canvas,
    make("p", { className: "ns-side" }), keys,
    make("div", { className: "ns-gap" }),
    queries, make("p", { className: "ns-side" }));
  const [above, below] = pair.querySelectorAll(".ns-side");
  const title = make("h3");
  const scale = make("p", { className: "ns-legend ns-scale" });
  const legend = make("p", { className: "ns-legend ns-says" });
  const colours = make("p", { className: "ns-legend ns-colours" });
  const element = make("section", { className: "ns-panel" },
    make("div", { className: "ns-panel-head" }, title, scale, legend, colours), pair);
  const chips = { key: [], query: [] };
  let field = null;
  let boxes = null;
  let compact = false;

  function build() {
    const direction = directionOf(field.queries.map((entry) => entry.text));
    const cross = !field.self;
    compact = Math.max(field.rows.length, field.cols.length) > MANY;
    element.classList.toggle("ns-compact", compact);
    element.classList.toggle("ns-dense", isDense(field));
    above.textContent = sideNames(field).key;
    below.textContent = sideNames(field).query;
    for (const [side, list, shown, box] of [
      ["key", field.keys, field.cols, keys],
      ["query", field.queries, field.rows, queries],
    ]) {
      box.textContent = "";
      box.dir = cross ? directionOf(list.map((entry) => entry.text)) : direction;
      box.setAttribute("role", "listbox");
      box.setAttribute("aria-label", side === "key" ? above.textContent : below.textContent);
      box.setAttribute("aria-orientation", "horizontal");
      chips[side] = new Array(list.length);
      for (const at of shown) {
        const entry = list[at];
        const label = make("bdi", {}, visible(entry.text));
        const chip = make("span", {
          className: `ns-token${entry.special ? " ns-special" : ""}${entry.joined ? " ns-joined" : ""}`,
          role: "option", tabIndex: -1, "aria-selected": "false",
        }, label, make("small", { "aria-hidden": "true" }));
        chip.dataset.side = side;
        chip.dataset.at = at;
        chips[side][at] = { chip, label, small: chip.lastChild, level: -1, note: "" };
        box.append(chip);
      }
    }
    boxes = null;
  }

  function measure() {
    const origin = pair.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(origin.width * ratio));
    canvas.height = Math.max(1, Math.round(origin.height * ratio));
    boxes = { width: origin.width, height: origin.height };
    for (const side of ["key", "query"])
      boxes[side] = chips[side].map(({ chip }) => {
        const box = chip.getBoundingClientRect();
        return {
          x: box.left - origin.left + box.width / 2,
          y: (side === "key" ? box.bottom : box.top) - origin.top,
          left: box.left - origin.left, top: box.top - origin.top, width: box.width, height: box.height,
        };
      });
  }

  /** The lines of a map or of a head, strongest first: of the token in focus, or the largest of each query. */
  function candidates(of, focus, vector, colour) {
    if (focus)
      return ranked(of, focus, vector).filter((at) => vector[at] !== 0).map((at) => ({
        query: focus.side === "query" ? focus.index : at,
        key: focus.side === "query" ? at : focus.index,
        value: vector[at], colour,
      }));
    if (of.difference) return [];
    return of.rows.map((query) => {
      const key = largestOf(of.own ? of.cols.filter((at) => at !== query) : of.cols, (at) => of.value(query, at));
      return { query, key, value: key < 0 ? 0 : of.value(query, key), colour };
    }).filter((link) => link.value > 0);
  }

  /** The lines to draw, strongest first, and how many there would be. */
  function links(focus, vector) {
    const coloured = colouredHeads(app, field);
    const all = coloured.length
      ? coloured.flatMap(({ field: of, colour }) => candidates(of, focus, vectorOf(of, focus), colour))
      : candidates(field, focus, vector, null);
    all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const size = all.length ? Math.abs(all[0].value) : 0;
    const dense = isDense(field);
    // In a short text, lines that are too thin to be seen are not counted as left out.
    const worth = dense || !focus ? all : all.filter((link) => Math.abs(link.value) > size * 0.02);
    const shown = worth.slice(0, lineLimit(app.state, field));
    for (const link of shown) link.weight = focus || dense || coloured.length ? Math.abs(link.value) / size : 0;
    headLegend(colours, coloured);
    return { shown, count: worth.length };
  }

  function curve(link) {
    const from = boxes.query[link.query];
    const to = boxes.key[link.key];
    if (!from || !to) return null;
    // Lines to tokens that are scrolled out of sight end at the edge of their row.
    const [low, high] = compact ? [clamped(queries, from.y), clamped(keys, to.y)] : [from.y, to.y];
    return between({ x: from.x, y: low }, { x: to.x, y: high }, 0, 0);
  }

  /** A curve from a query up to a key, whose rows are moved down. */
  function between(from, to, below, above) {
    const [low, high] = [from.y + below, to.y + above];
    const bend = Math.max(compact ? 6 : 24, (low - high) / 2);
    return [from.x, low, from.x, low - bend, to.x, high + bend, to.x, high];
  }

  function clamped(box, y) {
    const top = box.offsetTop;
    return Math.max(top, Math.min(top + box.offsetHeight, y));
  }

  function colourOf(link) {
    if (link.colour) return link.colour;
    const dark = app.theme() === "dark";
    if (!field.signed) return app.palette().up.css[dark ? 160 : 165];
    return app.palette().difference.css[link.value < 0 ? (dark ? 45 : 40) : 212];
  }

  function strokeOf(link) {
    const all = link.weight === 0;
    if (!own.focus && !all) return { width: 0.8 + 2.2 * link.weight, alpha: link.colour ? 0.85 : 0.35 + 0.3 * link.weight };
    return { width: all ? (field.self ? 1.2 : 2) : 0.6 + 6.5 * link.weight, alpha: all ? (field.self ? 0.5 : 0.75) : 0.25 + 0.65 * link.weight };
  }

  let drawn = [];
  let end = 0; // of the scale
  let own = { vector: [], largest: 0 };

  /** The largest value to be shown; panels that are compared share the largest of all. */
  function largest() {
    const focus = app.focus();
    const vector = vectorOf(field, focus);
    const order = ranked(field, focus, vector);
    own = { focus, vector, order, largest: order.length ? Math.abs(vector[order[0]]) : 0 };
    return own.largest;
  }

  function paint(max) {
    const { focus, vector, order } = own;
    const ramp = coloursOf(app, field);
    const root = app.rooted();
    end = max;
    const noted = focus && !isDense(field) ? new Set(order.slice(0, 6).filter((at) => Math.abs(vector[at]) > own.largest * 0.05)) : new Set();
    const lit = focus?.side === "key" ? "query" : "key";
    for (const side of ["key", "query"])
      chips[side].forEach((token, at) => {
        const chosen = focus?.side === side && focus.index === at;
        const hidden = lit === side && field.own && focus?.index === at;
        const shade = lit === side && !hidden ? level(vector[at], max, field.signed, root) : -2;
        if (token.level !== shade || token.ramp !== ramp) {
          token.level = shade;
          token.ramp = ramp;
          token.chip.style.backgroundColor = shade < 0 ? "" : ramp.css[shade];
          token.chip.style.color = shade < 0 ? "" : ramp.ink[shade];
        }
        const note = lit === side && noted.has(at) ? brief(field, vector[at]) : "";
        if (token.note !== note) {
          token.note = note;
          token.small.textContent = note;
        }
        if (token.chosen !== chosen) {
          token.chosen = chosen;
          token.chip.classList.toggle("ns-chosen", chosen);
          token.chip.setAttribute("aria-selected", String(chosen));
        }
      });
    scaleBar(app, scale, field, max);
    const { shown, count } = links(focus, vector);
    legend.textContent = own.largest > 0 ? says(focus, shown.length, count) : "nothing to show";
    drawLines(shown);
    rove(focus);
    // Wait for the next layout: asking for positions now would force another one.
    if (compact && focus && !app.hovered)
      requestAnimationFrame(() => {
        bring(lit, order[0]);
        bring(focus.side, focus.index);
      });
  }

  /** What colours and lines are, and how many lines are left out. */
  function says(focus, shown, count) {
    const name = focus && isolated(visible((focus.side === "key" ? field.keys : field.queries)[focus.index]?.text ?? "residual", 16));
    const shades = !focus ? "Mean over all tokens." : focus.side === "key" ? `From ${name} to each token.` : `From each token to ${name}.`;
    if (!count) return shades;
    if (shown < count) return `${shades} Lines: the ${shown} strongest of ${count}, ${count - shown} left out.`;
    return focus ? shades : `${shades} Lines: each token’s largest contributor.`;
  }

  /** Scroll a row, but not the page, to one of its tokens. */
  function bring(side, at) {
    const chip = chips[side][at]?.chip;
    const box = side === "key" ? keys : queries;
    if (!chip) return;
    const top = chip.offsetTop - box.offsetTop;
    if (top < box.scrollTop || top + chip.offsetHeight > box.scrollTop + box.clientHeight)
      box.scrollTop = top - box.clientHeight / 3;
  }

  for (const row of [keys, queries])
    row.addEventListener("scroll", () => {
      if (!compact || !field) return;
      boxes = null;
      drawLines(links(own.focus, own.vector).shown);
    });

  function drawLines(shown) {
    if (!boxes) measure();
    const context = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, boxes.width, boxes.height);
    context.lineCap = "round";
    drawn = [];
    for (const link of shown.reverse()) {
      const path = curve(link);
      if (!path) continue;
      const { width, alpha } = strokeOf(link);
      const colour = colourOf(link);
      drawn.push({ link, width, alpha, colour });
      context.globalAlpha = alpha;
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.beginPath();
      context.moveTo(path[0], path[1]);
      context.bezierCurveTo(...path.slice(2));
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** Make one token of each row reachable with Tab; arrow keys reach the others. */
  function rove(focus) {
    for (const side of ["key", "query"]) {
      const shown = side === "key" ? field.cols : field.rows;
      const stop = focus?.side === side && shown.includes(focus.index) ? focus.index : shown[0];
      if (chips[side].stop === stop) continue;
      if (chips[side][chips[side].stop]) chips[side][chips[side].stop].chip.tabIndex = -1;
      if (chips[side][stop]) chips[side][stop].chip.tabIndex = 0;
      chips[side].stop = stop;
    }
  }

  function under(event) {
    const chip = event.target.closest?.(".ns-token");
    return chip && pair.contains(chip) ? { side: chip.dataset.side, index: Number(chip.dataset.at), chip } : null;
  }
  let last = null;
  pair.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    const target = under(event);
    if ((target?.chip ?? null) === last) return;
    last = target?.chip ?? null;
    app.hover(target);
    if (target) {
      const entry = (target.side === "key" ? field.keys : field.queries)[target.index];
      app.tip(event, tokenNote(entry, target.index));
    } else app.tip(null);
  });
  pair.addEventListener("pointerleave", () => {
    last = null;
    app.hover(null);
    app.tip(null);
  });
  pair.addEventListener("click", (event) => {
    const target = under(event);
    if (!target) return;
    app.pin(target.side, target.index, true);
  });
  pair.addEventListener("focusin", (event) => {
    const target = under(event);
    if (target && event.target.matches(":focus-visible")) app.pin(target.side, target.index);
  });
  pair.addEventListener("keydown", (event) => {
    const target = under(event);
    if (!target) return;
    const next = neighbour(event.key, target);
    if (!next) return;
    event.preventDefault();
    chips[next.side][next.at].chip.focus();
    app.pin(next.side, next.at);
  });

  function neighbour(key, { side, index }) {
    const shown = side === "key" ? field.cols : field.rows;
    const place = shown.indexOf(index);
    const turned = (side === "key" ? keys : queries).dir === "rtl" ? -1 : 1;
    const step = { ArrowRight: turned, ArrowLeft: -turned }[key];
    if (step) return shown[place + step] === undefined ? null : { side, at: shown[place + step] };
    if (key === "Home") return { side, at: shown[0] };
    if (key === "End") return { side, at: shown[shown.length - 1] };
    if (key !== "ArrowUp" && key !== "ArrowDown") return null;
    measure();
    const from = boxes[side][index];
    let best = null;
    for (const other of ["key", "query"])
      for (const at of other === "key" ? field.cols : field.rows) {
        const box = boxes[other][at];
        const down = box.top - from.top;
        if (key === "ArrowUp" ? down > -4 : down < 4) continue;
        const far = Math.abs(down) * 10 + Math.abs(box.x - from.x);
        if (!best || far < best.far) best = { side: other, at, far };
      }
    return best;
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
    resized() {
      boxes = null;
    },
    focusToken(side, at) {
      chips[side][at]?.chip.focus();
    },
    svg(into, x, y) {
      measure();
      paint(end);
      const inks = app.inks();
      const context = canvas.getContext("2d");
      scaleLine(app, into, field, end, x, y);
      context.font = `11px ${app.font()}`;
      const width = Math.max(...[legend.textContent, colours.textContent].map((text) => context.measureText(text).width));
      into.append(svg("text", { x, y: y + 30, "font-size": 11, fill: inks.muted }, legend.textContent));
      y += 38;
      let across = x;
      for (const { head, colour } of colours.hidden ? [] : colouredHeads(app, field)) {
        into.append(svg("rect", { x: across, y: y - 2, width: 14, height: 4, fill: colour }));
        into.append(svg("text", { x: across + 18, y: y + 4, "font-size": 11, fill: inks.muted }, `head ${head}`));
        across += 70;
      }
      if (!colours.hidden) y += 14;
      // Scrolling rows are drawn whole: tokens that the screen clips have positions too.
      const beyond = (box) => (compact ? box.scrollHeight - box.clientHeight : 0);
      const lower = { key: y + keys.scrollTop, query: y + beyond(keys) + queries.scrollTop };
      const origin = pair.getBoundingClientRect();
      for (const [name, down] of [[above, y], [below, y + beyond(keys) + beyond(queries)]])
        into.append(svg("text", {
          x, y: round(down + name.getBoundingClientRect().top - origin.top + 12), "font-size": 11, "font-weight": 600, fill: inks.muted,
        }, name.textContent));
      for (const { link, width, alpha, colour } of drawn) {
        const path = between(boxes.query[link.query], boxes.key[link.key], lower.query, lower.key);
        into.append(svg("path", {
          d: `M${path.slice(0, 2).map((v, i) => round(v + (i ? 0 : x))).join(" ")}C${path.slice(2).map((v, i) => round(v + (i % 2 ? 0 : x))).join(" ")}`,
          fill: "none", stroke: colour, "stroke-width": round(width), "stroke-opacity": round(alpha), "stroke-linecap": "round",
        }));
      }
      for (const side of ["key", "query"])
        chips[side].forEach((token, at) => {
          const box = boxes[side][at];
          const top = lower[side] + box.top;
          const own = getComputedStyle(token.chip);
          const size = parseFloat(own.fontSize);
          context.font = `${own.fontSize} ${own.fontFamily}`;
          into.append(svg("rect", {
            x: round(x + box.left), y: round(top), width: round(box.width), height: round(box.height), rx: 5,
            fill: own.backgroundColor, stroke: token.chosen ? inks.accent : inks.line, "stroke-width": token.chosen ? 2 : 1,
          }));
          into.append(svg("text", {
            x: round(x + box.x), y: round(top + box.height / 2 + size * 0.36), "text-anchor": "middle", "font-size": size, fill: own.color,
          }, fitted(context, token.label.textContent, token.label.getBoundingClientRect().width + 0.5)));
          if (token.note) into.append(svg("text", {
            x: round(x + box.x), y: round(top + box.height + 11), "text-anchor": "middle", "font-size": 10,
            fill: inks.muted, stroke: inks.panel, "stroke-width": 3, "paint-order": "stroke",
          }, token.note));
        });
      return { width: Math.max(origin.width, width), height: origin.height + 38 + (colours.hidden ? 0 : 14) + beyond(keys) + beyond(queries) };
    },
  };
}

/** Names of the two rows of tokens, and of the axes of the matrix. */
function sideNames(field) {
  return field.self
    ? { key: "From these tokens (keys)", query: "To these tokens (queries)" }
    : { key: "From these source tokens (keys)", query: "To these target tokens (queries)" };
}

/** A number short enough to fit under a token; the list has it in full. */
function brief(field, value) {
  const sign = value < 0 ? "−" : field.signed ? "+" : "";
  const size = Math.abs(value);
  if (!field.share) return sign + number(size);
  return `${sign}${(100 * size).toFixed(size >= 0.0995 ? 0 : 1)}${field.difference ? "" : "%"}`;
}

function tokenNote(entry, index) {
  const lines = [isolated(visible(entry.text, 80))];
  if (entry.piece !== entry.text) lines.push(`piece ${isolated(visible(entry.piece, 80))}`);
  lines.push(`position ${entry.at[0]}${entry.at.length > 1 ? `–${entry.at[entry.at.length - 1]}` : ""}${entry.special ? ", special" : ""}`);
  return lines;
}

function panelTitle(app, field) {
  const place = field.difference ? "" : field.label || (field.variant.unit === "weight" ? "mean over heads" : "heads together");
  return `${field.variant.short}${place ? ` · ${place}` : ""}`;
}

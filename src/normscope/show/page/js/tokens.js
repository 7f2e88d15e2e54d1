// The token view: keys above, queries below, curves between them.

const LINES = 40; // the most that are drawn from one token
const MANY = 120; // with more tokens, both rows scroll and there is shading but no curves

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
  const legend = make("p", { className: "ns-legend" });
  const element = make("section", { className: "ns-panel" },
    make("div", { className: "ns-panel-head" }, title, legend), pair);
  const chips = { key: [], query: [] };
  let field = null;
  let boxes = null;
  let compact = false;

  function build() {
    const direction = directionOf(field.queries.map((entry) => entry.text));
    const cross = !field.self;
    compact = Math.max(field.rows.length, field.cols.length) > MANY;
    element.classList.toggle("ns-compact", compact);
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

  function links(focus, vector) {
    if (focus) {
      const size = Math.max(...ranked(field, focus, vector).slice(0, 1).map((at) => Math.abs(vector[at])), 0);
      return ranked(field, focus, vector)
        .slice(0, LINES)
        .filter((at) => Math.abs(vector[at]) > size * 0.02)
        .map((at) => ({
          query: focus.side === "query" ? focus.index : at,
          key: focus.side === "query" ? at : focus.index,
          value: vector[at], weight: Math.abs(vector[at]) / size,
        }));
    }
    if (field.signed) return [];
    return field.rows.map((query) => {
      let best = -1;
      for (const key of field.cols)
        if (!(field.own && key === query) && (best < 0 || field.value(query, key) > field.value(query, best))) best = key;
      return { query, key: best, value: field.value(query, best), weight: 0 };
    }).filter((link) => link.key >= 0 && link.value > 0);
  }

  function curve(link) {
    const from = boxes.query[link.query];
    const to = boxes.key[link.key];
    if (!from || !to) return null;
    const bend = Math.max(24, (from.y - to.y) / 2);
    return [from.x, from.y, from.x, from.y - bend, to.x, to.y + bend, to.x, to.y];
  }

  function colourOf(link) {
    const dark = app.theme() === "dark";
    if (!field.signed) return app.palette().up.css[dark ? 160 : 165];
    return app.palette().difference.css[link.value < 0 ? (dark ? 45 : 40) : 212];
  }

  function strokeOf(link) {
    const all = link.weight === 0;
    return { width: all ? (field.self ? 1.2 : 2) : 0.6 + 6.5 * link.weight, alpha: all ? (field.self ? 0.5 : 0.75) : 0.25 + 0.65 * link.weight };
  }

  let drawn = [];
  let strongest = 0;
  function paint() {
    const focus = app.focus();
    const vector = vectorOf(field, focus);
    const colours = field.signed ? app.palette().difference : app.palette().up;
    const order = ranked(field, focus, vector);
    const max = order.length ? Math.abs(vector[order[0]]) : 0;
    strongest = max;
    const noted = focus && !compact ? new Set(order.slice(0, 6).filter((at) => Math.abs(vector[at]) > max * 0.05)) : new Set();
    const lit = focus?.side === "key" ? "query" : "key";
    for (const side of ["key", "query"])
      chips[side].forEach((token, at) => {
        const chosen = focus?.side === side && focus.index === at;
        const hidden = lit === side && field.own && focus?.index === at;
        const shade = lit === side && !hidden ? level(vector[at], max, field.signed) : -2;
        if (token.level !== shade || token.colours !== colours) {
          token.level = shade;
          token.colours = colours;
          token.chip.style.backgroundColor = shade < 0 ? "" : colours.css[shade];
          token.chip.style.color = shade < 0 ? "" : colours.ink[shade];
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
    legend.textContent = max > 0
      ? focus ? `strongest: ${field.text(max).replace("+", "±")}` : field.signed ? "mean over all tokens" : `mean over all tokens${compact ? "" : "; lines: the largest of each"}`
      : "nothing to show";
    if (compact) canvas.width = canvas.height = drawn.length = 0;
    else drawLines(focus, vector);
    rove(focus);
    // Wait for the next layout: asking for positions now would force another one.
    if (compact && focus && !app.hovered)
      requestAnimationFrame(() => {
        bring(lit, order[0]);
        bring(focus.side, focus.index);
      });
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

  function drawLines(focus, vector) {
    if (!boxes) measure();
    const context = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, boxes.width, boxes.height);
    context.lineCap = "round";
    drawn = [];
    for (const link of links(focus, vector).reverse()) {
      const path = curve(link);
      if (!path) continue;
      const { width, alpha } = strokeOf(link);
      const colour = colourOf(link);
      drawn.push({ path, width, alpha, colour });
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
    paint,
    resized() {
      boxes = null;
    },
    focusToken(side, at) {
      chips[side][at]?.chip.focus();
    },
    svg(into, x, y) {
      measure();
      paint();
      const inks = app.inks();
      const context = canvas.getContext("2d");
      scaleLine(app, into, field, strongest, x, y);
      into.append(svg("text", { x, y: y + 30, "font-size": 11, fill: inks.muted }, legend.textContent));
      y += 38;
      // Scrolling rows are drawn whole: tokens that the screen clips have positions too.
      const beyond = (box) => (compact ? box.scrollHeight - box.clientHeight : 0);
      const lower = { key: y + keys.scrollTop, query: y + beyond(keys) + queries.scrollTop };
      const origin = pair.getBoundingClientRect();
      for (const [name, down] of [[above, y], [below, y + beyond(keys) + beyond(queries)]])
        into.append(svg("text", {
          x, y: round(down + name.getBoundingClientRect().top - origin.top + 12), "font-size": 11, "font-weight": 600, fill: inks.muted,
        }, name.textContent));
      for (const { path, width, alpha, colour } of drawn)
        into.append(svg("path", {
          d: `M${path.slice(0, 2).map((v, i) => round(v + (i ? y : x))).join(" ")}C${path.slice(2).map((v, i) => round(v + (i % 2 ? y : x))).join(" ")}`,
          fill: "none", stroke: colour, "stroke-width": round(width), "stroke-opacity": round(alpha), "stroke-linecap": "round",
        }));
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
      return { width: origin.width, height: origin.height + 38 + beyond(keys) + beyond(queries) };
    },
  };
}

/** Names of the two rows of tokens, and of the axes of the matrix. */
function sideNames(field) {
  return field.self
    ? { key: "Taken from (keys)", query: "Takes (queries)" }
    : { key: "Source: taken from (keys)", query: "Target: takes (queries)" };
}

/** A number short enough to fit under a token; the list has it in full. */
function brief(field, value) {
  const sign = value < 0 ? "−" : field.signed ? "+" : "";
  const size = Math.abs(value);
  if (!field.share) return sign + number(size);
  return `${sign}${(100 * size).toFixed(size >= 0.0995 ? 0 : 1)}%`;
}

function tokenNote(entry, index) {
  const lines = [isolated(visible(entry.text, 80))];
  if (entry.piece !== entry.text) lines.push(`piece ${isolated(visible(entry.piece, 80))}`);
  lines.push(`position ${entry.at[0]}${entry.at.length > 1 ? `–${entry.at[entry.at.length - 1]}` : ""}${entry.special ? ", special" : ""}`);
  return lines;
}

function panelTitle(app, field) {
  const place = field.signed ? "" : field.label || (field.variant.unit === "weight" ? "mean over heads" : "heads together");
  return `${field.variant.short}${place ? ` · ${place}` : ""}`;
}

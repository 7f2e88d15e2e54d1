// The state is a small record of what is shown, which is kept in the address of the page.

const VIEWS = ["picture", "tokens", "matrix", "overview"];
const ALL = 100_000;
const LINE_COUNTS = [0, 6, 12, 24, 48, ALL]; // 0: as many as are readable

/** The views that a part has: without patches there is no picture. */
function viewsOf(model, part) {
  const lists = [model.tokens[part.tokens], model.tokens[part.keys]];
  return lists.some((tokens) => tokens.places) ? VIEWS : VIEWS.slice(1);
}

/** Return a valid state: fields that do not fit this result get a default. */
function fitting(model, wanted) {
  const state = { ...wanted };
  const parts = model.parts;
  const within = (value, count) => Number.isInteger(value) && value >= 0 && value < count;
  if (!parts.some((part) => part.name === state.part)) state.part = parts[parts.length - 1].name;
  const part = parts.find(({ name }) => name === state.part);
  const views = viewsOf(model, part);
  if (!views.includes(state.view)) state.view = views[0];
  if (typeof state.image !== "boolean") state.image = true;
  const names = part.maps.map(({ name }) => name);
  const norms = model.pair[1];
  if (!names.includes(state.map)) state.map = names.includes(norms) ? norms : names[0];
  if (!names.includes(state.versus) || state.versus === state.map) state.versus = "";
  if (!part.layers.includes(state.layer)) state.layer = part.layers[0];
  const map = part.maps.find(({ name }) => name === state.map);
  const heads = map.heads ?? part.maps.find((entry) => entry.heads)?.heads ?? [];
  if (state.head !== "sum" && !heads.includes(state.head)) state.head = "sum";
  if (!map.sum && state.head === "sum") state.head = map.heads[0];
  if (state.scale !== "absolute") state.scale = "share";
  if (!model.tokens[part.tokens].word) state.words = false;
  if (!within(state.query, model.tokens[part.tokens].pieces.length)) state.query = null;
  const keys = Math.max(...part.maps.map((entry) => model.tokens[(entry.sum ?? entry.each).keys].pieces.length));
  if (!within(state.key, keys)) state.key = null;
  if (!SORTS.includes(state.by)) state.by = "second"; // the second map shows what the first hides
  if (!["light", "dark"].includes(state.theme)) state.theme = "";
  const known = headsOf(part, state);
  state.heads = [...new Set(state.heads ?? [])].filter((head) => known.includes(head)).slice(0, MOST_HEADS);
  if (!LINE_COUNTS.includes(state.lines)) state.lines = 0;
  return state;
}

/** The state in which a page opens: weights beside norms, where they differ most. */
function opening(model) {
  const { layer, head, part: name } = model.opening;
  const part = model.parts.find((each) => each.name === name) ?? model.parts[0];
  const has = (map, kind) => Boolean(part.maps.find(({ name }) => name === map)?.[kind]);
  const pair = model.pair.filter((map) => has(map, "sum") || has(map, "each"));
  const together = pair.every((map) => has(map, "sum"));
  return {
    view: "", part: part.name, map: pair[0] ?? part.maps[0].name, versus: pair[1] ?? "",
    layer, head: together || head === null ? "sum" : head, scale: "share", words: false, special: true, own: true,
    query: null, key: null, by: "second", theme: "", heads: [], lines: 0, root: null,
  };
}

function toFragment(state) {
  const fields = {
    view: state.view, part: state.part, map: state.map, vs: state.versus, layer: state.layer,
    head: state.head, scale: state.scale, unit: state.words ? "words" : "pieces",
    special: state.special ? "show" : "hide", own: state.own ? "show" : "hide",
    query: state.query, key: state.key, by: state.versus && state.by !== "second" ? state.by : "", theme: state.theme,
    image: state.image ? "" : "hide", heads: state.heads.join(","), lines: state.lines || "", colours: state.root === null ? "" : state.root ? "root" : "linear",
  };
  const kept = Object.entries(fields).filter(([, value]) => value !== null && value !== "");
  return "#" + kept.map((pair) => pair.map(encodeURIComponent).join("=")).join("&");
}

/** Read the fields of a fragment; `fitting` has to check them. */
function fromFragment(fragment) {
  const fields = {};
  const whole = (text) => (/^\d{1,6}$/.test(text) ? Number(text) : null);
  for (const pair of fragment.replace(/^#/, "").split("&")) {
    const cut = pair.indexOf("=");
    if (cut < 0) continue;
    let value;
    try {
      value = decodeURIComponent(pair.slice(cut + 1));
    } catch {
      continue;
    }
    const name = pair.slice(0, cut);
    if (["view", "part", "map", "scale", "by", "theme"].includes(name)) fields[name] = value;
    else if (name === "vs") fields.versus = value;
    else if (name === "layer" || name === "query" || name === "key") fields[name] = whole(value);
    else if (name === "head") fields.head = value === "sum" ? "sum" : whole(value);
    else if (name === "heads") fields.heads = value.split(",").map(whole);
    else if (name === "lines") fields.lines = whole(value) ?? 0;
    else if (name === "colours") fields.root = { root: true, linear: false }[value] ?? null;
    else if (name === "unit") fields.words = value === "words";
    else if (name === "special" || name === "own" || name === "image") fields[name] = value !== "hide";
  }
  // A link with a map and none to compare it with shows that map alone.
  if (fields.map !== undefined && fields.versus === undefined) fields.versus = "";
  return fields;
}

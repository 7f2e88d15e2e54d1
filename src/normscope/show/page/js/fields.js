// Compute the fields that the state shows: one map, or two and their difference.

/** Choose the array of a map: that of the selected head, or that of the heads together. */
function choose(part, name, state) {
  const map = part.maps.find((entry) => entry.name === name);
  const head = state.head !== "sum" && map.each ? map.heads.indexOf(state.head) : -1;
  if (head >= 0) return { map, variant: map.each, head, label: `head ${state.head}` };
  if (map.sum) return { map, variant: map.sum, head: 0, label: "" };
  return { map, variant: map.each, head: 0, label: `head ${map.heads[0]}` };
}

function fieldOf(model, part, name, layer, state, share = state.scale === "share") {
  const { variant, head, label } = choose(part, name, state);
  const cells = cellsOf(model, part, variant, layer, head, { words: state.words, share });
  const self = part.tokens === part.keys;
  return finished({
    ...cells, variant, name, label, share,
    width: cells.keys.length,
    own: self && !state.own,
    self,
    ...shownEntries(cells, state),
  });
}

function shownEntries({ queries, keys }, state) {
  const shown = (list) => {
    const all = list.map((_, at) => at);
    const some = state.special ? all : all.filter((at) => !list[at].special);
    return some.length ? some : all;
  };
  return { rows: shown(queries), cols: shown(keys) };
}

function finished(field) {
  const { values, rows, cols, width, own } = field;
  field.hidden = (query, key) => own && query === key;
  field.at = (y, x) => (own && rows[y] === cols[x] ? 0 : values[rows[y] * width + cols[x]]);
  field.value = (query, key) => (own && query === key ? 0 : key < width ? values[query * width + key] : 0);
  let max = 0;
  for (const i of rows)
    for (const j of cols) {
      if (own && i === j) continue;
      const size = Math.abs(values[i * width + j]);
      if (size > max) max = size;
    }
  field.max = max;
  field.text = (value) =>
    field.share ? (field.difference ? points(value) : percent(value)) : (field.signed && value > 0 ? "+" : "") + number(value);
  return field;
}

/** The difference second − first. A weight and a norm have no common unit: their shares are compared. */
function differenceOf(model, part, layer, state, first, second) {
  let [a, b] = [first, second];
  const share = state.scale === "share" || first.variant.unit !== second.variant.unit;
  if (share && state.scale !== "share") {
    a = fieldOf(model, part, first.name, layer, state, true);
    b = fieldOf(model, part, second.name, layer, state, true);
  }
  const wider = a.width >= b.width ? a : b;
  const { queries, keys, width, rows, cols, own, self } = wider;
  const values = new Float32Array(queries.length * width);
  for (let i = 0; i < queries.length; i++)
    for (let j = 0; j < width; j++)
      values[i * width + j] =
        (j < b.width ? b.values[i * b.width + j] : 0) - (j < a.width ? a.values[i * a.width + j] : 0);
  return finished({
    values, queries, keys, width, rows, cols, own, self, signed: true, difference: true, share, name: "difference",
    label: "", levels: Math.min(a.levels, b.levels),
    variant: {
      short: `${b.variant.short} − ${a.variant.short}`, unit: share ? "share" : a.variant.unit,
      title: `Difference: ${b.variant.short} − ${a.variant.short}`,
      keys: wider.variant.keys,
    },
  });
}

/** All fields of the state, beginning with that of its map. */
function fieldsOf(model, part, state) {
  const layer = part.layers.indexOf(state.layer);
  const first = fieldOf(model, part, state.map, layer, state);
  if (!state.versus) return [first];
  const second = fieldOf(model, part, state.versus, layer, state);
  return [first, second, differenceOf(model, part, layer, state, first, second)];
}

/** What each key contributes to the query in focus, or the key in focus to each query; without focus the mean by key. */
function vectorOf(field, focus) {
  if (focus?.side === "query") return field.keys.map((_, key) => field.value(focus.index, key));
  if (focus?.side === "key") return field.queries.map((_, query) => field.value(query, focus.index));
  const sums = new Array(field.keys.length).fill(0);
  for (const i of field.rows) for (const j of field.cols) sums[j] += field.value(i, j);
  return sums.map((sum) => sum / field.rows.length);
}

/** The positions of a vector's shown entries, largest first. */
function ranked(field, focus, vector) {
  const shown = focus?.side === "key" ? field.rows : field.cols;
  const hidden = focus && field.own ? focus.index : -1;
  return shown
    .filter((at) => at !== hidden)
    .sort((a, b) => Math.abs(vector[b]) - Math.abs(vector[a]) || a - b);
}

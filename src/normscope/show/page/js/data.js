// Unpack the numbers of a page, and return the cells of a map.

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  if (typeof DecompressionStream === "undefined")
    throw new Error("this browser is too old to unpack the maps: it has no DecompressionStream");
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Return the data of a page with its arrays unpacked; each has a function that returns a slice. */
async function unpack(data) {
  if (data.format !== "normscope.page" || data.version !== 4)
    throw new Error("the data of this page has a format that its code cannot read");
  const slabs = [];
  for (const slab of data.slabs) {
    if (slab.times !== undefined) slabs.push(weighted(slabs[slab.times], slab.factor));
    else if (slab.mean !== undefined) slabs.push(meanOf(slabs[slab.mean]));
    else slabs.push(stored(slab, await inflate(bytesOf(slab.data))));
  }
  return { ...data, slabs };
}

function stored({ shape, levels, largest, signed = false }, bytes) {
  const cols = shape[shape.length - 1];
  const rows = shape.length > 2 ? shape[shape.length - 2] : 1;
  const heads = shape.length > 3 ? shape[1] : 1;
  const size = rows * cols;
  const count = shape.reduce((product, size) => product * size, 1);
  return {
    layers: shape[0], heads, rows, cols, signed, levels: signed ? levels >> 1 : levels,
    slice(layer, head) {
      const at = layer * heads + head;
      const middle = signed ? levels >> 1 : 0; // the level of zero
      const step = largest[at] / (signed ? middle : levels) ** 2; // cells are stored as square roots, so that small values are precise
      const value = (level) => Math.sign(level - middle) * (level - middle) ** 2 * step;
      const values = new Float32Array(size);
      const start = at * size;
      if (levels <= 255) for (let i = 0; i < size; i++) values[i] = value(bytes[start + i]);
      else
        for (let i = 0; i < size; i++)
          values[i] = value(bytes[start + i] | (bytes[start + i + count] << 8));
      return values;
    },
  };
}

/** α‖f(x)‖: the weights times the norm of every key's vector. */
function weighted(weights, factor) {
  const norms = new Float32Array(bytesOf(factor).buffer);
  const { layers, heads, rows, cols, levels } = weights;
  return {
    layers, heads, rows, cols, levels,
    slice(layer, head) {
      const values = weights.slice(layer, head);
      const start = (layer * heads + head) * cols;
      for (let i = 0, at = 0; i < rows; i++)
        for (let j = 0; j < cols; j++, at++) values[at] *= norms[start + j];
      return values;
    },
  };
}

function meanOf(each) {
  const { layers, heads, rows, cols, levels } = each;
  return {
    layers, heads: 1, rows, cols, levels,
    slice(layer) {
      const values = each.slice(layer, 0);
      for (let head = 1; head < heads; head++) {
        const more = each.slice(layer, head);
        for (let i = 0; i < values.length; i++) values[i] += more[i];
      }
      for (let i = 0; i < values.length; i++) values[i] /= heads;
      return values;
    },
  };
}

/** The entries of an axis: pieces, or words with the positions of their pieces. */
function entries(tokens, words) {
  if (!words || !tokens.word)
    return tokens.pieces.map((piece, at) => ({
      text: tokens.texts[at],
      piece,
      special: Boolean(tokens.special[at]),
      joined: at > 0 && tokens.word !== undefined && tokens.word[at] === tokens.word[at - 1],
      at: [at],
    }));
  const list = tokens.words.map((text) => ({ text, piece: text, special: false, joined: false, at: [] }));
  tokens.word.forEach((word, at) => {
    list[word].at.push(at);
    if (tokens.special[at]) list[word].special = true;
  });
  return list;
}

/** Merge words: sum over the keys of a word, mean over its queries. */
function merged(values, rows, cols, queries, keys) {
  if (queries.length === rows && keys.length === cols) return values;
  const narrow = new Float64Array(rows * keys.length);
  for (let k = 0; k < keys.length; k++)
    for (const j of keys[k].at)
      for (let i = 0; i < rows; i++) narrow[i * keys.length + k] += values[i * cols + j];
  const out = new Float32Array(queries.length * keys.length);
  for (let q = 0; q < queries.length; q++) {
    const many = queries[q].at;
    for (const i of many)
      for (let k = 0; k < keys.length; k++)
        out[q * keys.length + k] += narrow[i * keys.length + k] / many.length;
  }
  return out;
}

/** Divide every row by its sum, of absolute values where cells may be negative. */
function shareRows(values, rows, cols) {
  for (let i = 0; i < rows; i++) {
    let sum = 0;
    for (let j = 0; j < cols; j++) sum += Math.abs(values[i * cols + j]);
    if (sum > 0) for (let j = 0; j < cols; j++) values[i * cols + j] /= sum;
  }
  return values;
}

/** The cells of one map as {values, queries, keys}, with a row for each query. */
function cellsOf(model, part, variant, layer, head, { words, share }) {
  const slab = model.slabs[variant.slab];
  const queries = entries(model.tokens[part.tokens], words);
  const keys = entries(model.tokens[variant.keys], words);
  const values = merged(slab.slice(layer, head), slab.rows, slab.cols, queries, keys);
  if (share) shareRows(values, queries.length, keys.length);
  return { values, queries, keys, levels: slab.levels, signed: Boolean(slab.signed) };
}

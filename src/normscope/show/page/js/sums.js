// The numbers of an attribution: what is chosen of answers, layers and parts, and its sums.

/** Return the data of a page with its arrays unpacked; the first axis of each is that of the steps. */
async function unpackShares(data) {
  if (data.format !== "normscope.shares" || data.version !== 1)
    throw new Error("the data of this page has a format that its code cannot read");
  const arrays = {};
  for (const [name, { shape, data: packed }] of Object.entries(data.arrays)) {
    const bytes = await inflate(bytesOf(packed));
    const values = new Float32Array(bytes.buffer, 0, bytes.length / 4);
    if (values.length !== shape.reduce((product, size) => product * size, 1)) throw new Error(`the numbers of ${name} are damaged`);
    arrays[name] = { shape, values, size: shape.slice(1).reduce((product, size) => product * size, 1) };
  }
  return { ...data, arrays };
}

/** The steps that the state shows, as [first, end]. */
function stepsOf(model, state) {
  return state.steps ?? [0, model.value.length];
}

/** Sum an array over the shown steps, from `start` on, `count` numbers. */
function overSteps(model, state, name, start, count) {
  const { values, size } = model.arrays[name];
  const sums = new Float64Array(count);
  const [first, end] = stepsOf(model, state);
  for (let step = first; step < end; step++)
    for (let i = 0; i < count; i++) sums[i] += values[step * size + start + i];
  return sums;
}

function total(list, [first, end] = [0, list.length]) {
  let sum = 0;
  for (let i = first; i < end; i++) sum += list[i];
  return sum;
}

/** Everything that is shown: the share of each entry, the bias, the value, and what parts leave out. */
function sharesOf(model, state) {
  const count = model.tokens.pieces.length;
  const steps = stepsOf(model, state);
  const entriesShown = entries(model.tokens, state.words).map((entry) => ({ ...entry, space: model.tokens.spaces[entry.at[0]], patch: Boolean(model.tokens.places?.[entry.at[0]]), side: model.sides[entry.at[0]] }));
  const value = total(model.value, steps);
  let [bias, error] = [total(model.bias, steps), model.error];
  let tokens, others = 0;
  if (state.cut >= 0) {
    tokens = overSteps(model, state, "layers", state.cut * count, count);
    bias = overSteps(model, state, "layer_bias", state.cut, 1)[0];
    const { values, size } = model.arrays.layer_error;
    error = Math.max(...Array.from({ length: steps[1] - steps[0] }, (_, i) => values[(steps[0] + i) * size + state.cut]));
  } else if (state.part) {
    tokens = overSteps(model, state, "parts", model.parts.indexOf(state.part) * count, count);
    others = total(overSteps(model, state, "scores", 0, count)) - total(tokens);
  } else tokens = overSteps(model, state, "scores", 0, count);
  const shares = entriesShown.map(({ at }) => at.reduce((sum, position) => sum + tokens[position], 0));
  const largest = shares.reduce((most, share) => Math.max(most, Math.abs(share)), 0);
  return { entries: entriesShown, tokens, shares, largest, bias, others, value, error, sum: total(shares), complete: model.complete };
}

/** The entries that a range of token positions covers, as [first, end]. */
function covered(list, range) {
  if (!range) return null;
  const inside = list.map(({ at }, index) => (at.some((position) => position >= range[0] && position < range[1]) ? index : -1)).filter((index) => index >= 0);
  return inside.length ? [inside[0], inside[inside.length - 1] + 1] : null;
}

/** The level of a share's colour, of 256; with `root` small shares are brought out. */
function shareLevel(value, largest, root) {
  if (!(largest > 0)) return level(0, 1, true);
  const part = value / largest;
  return level(root ? Math.sign(part) * Math.sqrt(Math.abs(part)) : part, 1, true);
}

/** How many decimals give the largest of some numbers three digits. */
function decimalsFor(...values) {
  const largest = Math.max(...values.map(Math.abs));
  return largest > 0 ? Math.min(8, Math.max(2, 2 - Math.floor(Math.log10(largest)))) : 2;
}

/** A number with its sign; zero has none. */
function amount(value, decimals = 2, plus = true) {
  const text = Math.abs(value).toFixed(decimals);
  if (Number(text) === 0) return text;
  return (value < 0 ? "−" : plus ? "+" : "") + text;
}

/** What part of the value a share is; nothing where the value is close to zero. */
function partOf(value, share, shown) {
  return shown.complete && Math.abs(value) > 0.01 * shown.largest ? `${((100 * share) / value).toFixed(Math.abs(share / value) < 0.1 ? 1 : 0).replace("-", "−")}% of the value` : "";
}

/** The proof, as words: the shares add up to the model's own value; or that they need not. */
function proofOf(model, state, shown) {
  const decimals = decimalsFor(shown.sum, shown.bias, shown.value);
  const method = visible(model.settings.method ?? "this method", 40);
  const own = `the model’s own value, ${amount(shown.value, decimals, false)} (${visible(model.units, 20)})`;
  if (!model.signed) return `Scores of ${method} are sizes (${visible(model.unit, 40)}), without a sign or a sum. They are about ${own}.`;
  if (!model.complete) return `Scores of ${method} add up to ${amount(shown.sum, decimals, false)}, and need not add up to ${own}.`;
  const { baseline } = model.settings;
  const terms = [`shares ${amount(shown.sum, decimals, false)}`];
  if (shown.others) terms.push(`other parts ${amount(shown.others, decimals, false)}`);
  if (shown.bias || !baseline || state.cut >= 0) terms.push(`bias ${amount(shown.bias, decimals, false)}`);
  const whose = `the model’s own value${baseline ? ` minus that of the baseline ${visible(baseline, 60)}` : ""}`;
  const place = state.cut >= 0 ? `${cutName(model, state.cut)}: ` : "";
  const words = `${place}${terms.join(" + ")} ${shown.error < 1e-2 ? "=" : "≈"} ${amount(shown.value, decimals, false)}, ${whose} (${visible(model.units, 20)}); gap ${errorText(shown.error, 0)}.`;
  return words[0].toUpperCase() + words.slice(1);
}

/** Where a cut of the trace lies. */
function cutName(model, cut) {
  if (cut < 0) return "input";
  const last = model.cuts.length - 1;
  return cut === last && last > 0 ? `after layer ${model.cuts[last - 1]}` : `before layer ${model.cuts[cut]}`;
}

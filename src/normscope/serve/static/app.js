// The form, the progress of an analysis, and its result. Text from outside is set as text only,
// never as HTML.

const STORED = "normscope"; // the key of the form in the tab's own storage, never sent anywhere
const PLAIN = {
  attn_w: "how much each word looks at every other",
  attn_n: "how much each word really adds to every other",
  attn_res_w: "weights, with what a word keeps of itself",
  attn_res_n: "contributions, with what a word keeps of itself",
  attn_res_ln_n: "everything attention does, with what a word keeps of itself, rescaled",
  atb: "everything attention does, with what a word keeps of itself",
  atb_ln: "the same, rescaled",
  atb_ff: "what the second half of the layer adds, by word",
  atb_ff_res: "the second half of the layer, with what it passes on",
  atb_ff_res_ln: "from the input of the layer to its output",
  atb_ln_ff: "what the second half of the layer adds, by word",
  atb_ln_ff_res: "from the input of the layer to its output",
};
const FORMATS = { html: "HTML page", safetensors: "safetensors", json: "JSON", csv: "CSV" };

const $ = (id) => document.getElementById(id);
const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

let models = [];
let limits = {};
let job = null; // the current job, as the server last described it
let startedAt = 0; // when it began to run, by performance.now()
let cancelled = false; // whether Cancel was pressed

class Problem extends Error {
  constructor(message, status, wait) {
    super(message);
    this.status = status;
    this.wait = wait; // seconds after which to try again; 0 if that would not help
  }
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Problem("The server does not respond. Is it still running?", 0, 0);
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const wait = Number(response.headers.get("Retry-After")) || 0;
    const message = answer.error || `The server responded with status ${response.status}.`;
    throw new Problem(message, response.status, wait);
  }
  return answer;
}

function post(path, body) {
  return call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

function say(message, isError = false, element = $("status")) {
  element.textContent = message;
  element.classList.toggle("wrong", isError);
}

// ---- start and login

async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname); // keep the token out of bookmarks
    try {
      await post("/api/session", { token });
    } catch (problem) {
      say(problem.message, true, $("login-status"));
    }
  }
  try {
    ({ models, limits } = await call("/api/models"));
  } catch (problem) {
    const login = problem.status === 401;
    $("login").hidden = !login;
    $("ask").hidden = login;
    $("go").disabled = !login;
    if (login) $("token").focus();
    else say(problem.message, true);
    return;
  }
  $("login").hidden = true;
  $("ask").hidden = false;
  $("go").disabled = false;
  $("model").replaceChildren(...models.map((model) => new Option(model.name, model.name)));
  $("model-field").hidden = models.length < 2;
  updateModel();
  restore();
}

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await post("/api/session", { token: $("token").value });
  } catch (problem) {
    say(problem.message, true, $("login-status"));
    return;
  }
  $("token").value = "";
  await start();
  $("text").focus();
});

// ---- the form

function selectedModel() {
  return models[$("model").selectedIndex];
}

function selectedQuestion() {
  return $("questions").querySelector("input:checked").value;
}

// The questions that any model can answer, in the order of the models.
function allQuestions() {
  const questions = {};
  for (const model of models) {
    for (const [name, question] of Object.entries(model.questions)) questions[name] ??= question;
  }
  return questions;
}

function updateModel() {
  const model = selectedModel();
  const before = $("questions").querySelector("input:checked")?.value;
  const checked = before in model.questions ? before : Object.keys(model.questions)[0];
  const questions = { ...allQuestions(), ...model.questions };
  $("questions").replaceChildren(
    ...Object.entries(questions).map(([name, question]) => {
      const card = choice("radio", "question", name, question.title, question.about);
      card.firstChild.checked = name === checked;
      card.firstChild.addEventListener("change", selectQuestion);
      return card;
    }),
  );
  $("hint").textContent =
    `${models.length < 2 ? `Model: ${model.name}. ` : ""}At most ${model.max_length} tokens and ` +
    `${limits.time_limit} seconds.`;
  $("generate").max = model.max_length;
  const labels = model.labels.map((label) => new Option(label, label));
  $("label").replaceChildren(new Option("the model’s own choice", ""), ...labels);
  $("foil-label").replaceChildren(
    new Option("—", ""), ...labels.map((option) => option.cloneNode(true)));
  $("maps").replaceChildren(
    ...model.maps.map((name) => {
      const box = choice("checkbox", "maps", name, model.titles[name] ?? name, PLAIN[name]);
      box.firstChild.checked = model.suggested.includes(name);
      box.title = name;
      return box;
    }),
  );
  updateQuestion();
  updateHeads();
}

// Ask the selected model, or the first one that can answer.
function selectQuestion() {
  const name = selectedQuestion();
  if (name in selectedModel().questions) {
    updateQuestion();
    return;
  }
  $("model").selectedIndex = models.findIndex((model) => name in model.questions);
  updateModel();
  $("questions").querySelector("input:checked").focus(); // the cards are new
}

function choice(type, name, value, title, about) {
  const label = document.createElement("label");
  const box = document.createElement("input");
  Object.assign(box, { type, name, value });
  const words = document.createElement("span");
  words.append(title);
  if (about) {
    const more = document.createElement("span");
    more.className = "quiet";
    more.id = `${name}-${value}-about`;
    more.textContent = about;
    box.setAttribute("aria-describedby", more.id);
    label.append(box, words);
    words.id = `${name}-${value}-title`;
    box.setAttribute("aria-labelledby", words.id);
    const column = document.createElement("span");
    column.append(words, more);
    label.append(column);
  } else label.append(box, words);
  return label;
}

// The elements of a request's fields. Fields with labels have a list of them to select from.
const TEXTS = {
  text_pair: "pair", target: "target", similar_to: "similar", continuation: "continuation",
};
const LABELLED = { answer: "label", foil: "foil-label" };

function elementOf(field) {
  if (selectedModel().labels.length && field in LABELLED) return LABELLED[field];
  return TEXTS[field] ?? field;
}

function updateQuestion() {
  const model = selectedModel();
  const name = selectedQuestion();
  const question = model.questions[name];
  const maps = name === "maps";
  const shown = question.fields.filter(
    (field) => !maps || (field === "target" ? model.target : field !== "text_pair" || !model.target));
  const required = maps && model.target ? ["target"] : question.required;
  for (const field of [...Object.keys(TEXTS), "answer", "foil", "generate", "position"]) {
    for (const id of new Set([LABELLED[field], TEXTS[field] ?? field].filter(Boolean))) {
      const used = shown.includes(field) && id === elementOf(field);
      $(`${id}-field`).hidden = !used;
      $(id).required = used && required.includes(field);
    }
  }
  $("answers").hidden = !shown.some((field) => field in LABELLED || ["generate", "position"].includes(field));
  $("space-field").hidden = !question.follows || shown.includes("generate");
  $("shares-options").hidden = maps;
  $("maps-field").hidden = !maps;
  $("heads-field").hidden = !maps;
  $("text-label").textContent = maps && model.target ? "Source" : question.text;
  $("target-label").textContent = maps ? "Target: the text that the decoder reads" : "Translation";
  $("pair-label").textContent = required.includes("text_pair") ? "Passage with the answer" : "Second text";
  $("pair-optional").hidden = required.includes("text_pair");
  // A second text that most texts do not have is not asked for at first.
  $(required.includes("text_pair") ? "texts" : "advanced-texts").append($("pair-field"));
  $("position-hint").textContent = required.includes("position")
    ? "(counted from 0, special tokens included)"
    : "(optional, in place of a mask; counted from 0)";
  $("baseline-hint").textContent =
    `A text with the same number of tokens, ${model.mask ? `${model.mask}, ` : ""}zero or mean: the shares then ` +
    "explain the difference from it.";
  suggest(question.examples);
}

// Fill in the examples of a question wherever the user has written nothing else.
const suggested = {};

function suggest(examples) {
  for (const field of ["text", ...Object.keys(TEXTS)]) {
    const element = $(TEXTS[field] ?? field);
    suggested[field] ??= element.defaultValue;
    if (element.value !== suggested[field]) continue;
    element.value = suggested[field] = examples[field] ?? "";
  }
}

function selectedHeads() {
  return document.querySelector("input[name=heads]:checked").value;
}

function updateHeads() {
  const model = selectedModel();
  for (const box of $("maps").querySelectorAll("input")) {
    box.disabled = selectedHeads() === "each" && !model.per_head.includes(box.value);
  }
}

// ---- a reload keeps the form

const FIELDS = [
  "text", "pair", "target", "similar", "continuation", "answer", "label", "foil", "foil-label",
  "generate", "position", "baseline",
];
const FLAGS = ["space", "trace"];

function store() {
  const state = {
    model: $("model").value,
    question: selectedQuestion(),
    fields: Object.fromEntries(FIELDS.map((id) => [id, $(id).value])),
    flags: Object.fromEntries(FLAGS.map((id) => [id, $(id).checked])),
    maps: [...$("maps").querySelectorAll("input:checked")].map((box) => box.value),
    heads: selectedHeads(),
    advanced: $("advanced").open,
  };
  try {
    sessionStorage.setItem(STORED, JSON.stringify(state));
  } catch {
    // Storage is full or not allowed: a reload then begins anew.
  }
}

function restore() {
  let state;
  try {
    state = JSON.parse(sessionStorage.getItem(STORED));
  } catch {
    return;
  }
  if (!state || !models.some((model) => model.name === state.model)) return;
  $("model").value = state.model;
  updateModel();
  const radio = [...$("questions").querySelectorAll("input")].find(
    (box) => box.value === state.question);
  if (radio && state.question in selectedModel().questions) radio.checked = true;
  updateQuestion();
  for (const id of FIELDS) if (typeof state.fields[id] === "string") $(id).value = state.fields[id];
  for (const id of FLAGS) $(id).checked = Boolean(state.flags[id]);
  for (const box of $("maps").querySelectorAll("input")) box.checked = state.maps.includes(box.value);
  for (const box of document.querySelectorAll("input[name=heads]")) {
    box.checked = box.value === state.heads;
  }
  $("advanced").open = Boolean(state.advanced);
  updateHeads();
}

function changed(event) {
  event.target.removeAttribute?.("aria-invalid");
  if (!$("result").hidden && !job) $("stale").hidden = false;
  store();
}

$("model").addEventListener("change", updateModel);
$("ask").addEventListener("input", changed);
$("ask").addEventListener("change", changed);
$("advanced").addEventListener("toggle", () => models.length && store());
for (const radio of document.querySelectorAll("input[name=heads]")) {
  radio.addEventListener("change", updateHeads);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("ask").hidden) {
    event.preventDefault();
    if (!$("go").disabled) $("ask").requestSubmit();
  } else if (event.key === "Escape" && job) {
    cancel();
  }
});

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (job || $("go").disabled) return;
  $("result").hidden = true; // it does not belong to what is asked now
  if (!complete()) return;
  const name = selectedQuestion();
  const analysis = { model: selectedModel().name, question: name, text: $("text").value };
  if (name === "maps") {
    const boxes = [...$("maps").querySelectorAll("input:checked:not(:disabled)")];
    if (!boxes.length) {
      $("advanced").open = true;
      say("Select at least one thing to measure, under Advanced.", true);
      return;
    }
    analysis.maps = boxes.map((box) => box.value);
    analysis.heads = selectedHeads();
  }
  Object.assign(analysis, writtenFields());
  setBusy(true);
  say("Sending …");
  try {
    await follow(await withRetries(() => post("/api/jobs", analysis)), name);
  } catch (problem) {
    say(problem.message, true);
    if (problem.status === 401) await start();
  } finally {
    job = null;
    setBusy(false);
  }
});

// Whether all required fields are filled in; otherwise name the first that is not.
function complete() {
  for (const element of $("ask").querySelectorAll("textarea, input")) {
    const empty = element.required && !element.value.trim() && !element.closest("[hidden]");
    element.toggleAttribute("aria-invalid", false);
    if (!empty) continue;
    const name = $("ask").querySelector(`label[for=${element.id}]`).innerText.replace(/\(.*/s, "");
    element.setAttribute("aria-invalid", "true");
    say(`${name.trim()} is empty: write at least one word.`, true);
    element.focus();
    return false;
  }
  return true;
}

// The fields of the question that are not empty, as a request has them.
function writtenFields() {
  const written = {};
  const question = selectedModel().questions[selectedQuestion()];
  for (const field of question.fields) {
    if (["maps", "heads"].includes(field)) continue;
    const element = $(elementOf(field));
    if (element.closest("[hidden]")) continue;
    if (field === "trace") written.trace = element.checked;
    else if (element.value.trim()) {
      written[field] = element.type === "number" ? Number(element.value) : element.value;
    }
  }
  if (question.follows && $("space").checked) {
    for (const field of ["answer", "foil", "continuation"]) {
      if (field in written) written[field] = spaced(written[field]);
    }
  }
  return written;
}

// Begin a new word after the prompt, in scripts that write spaces between words.
function spaced(text) {
  const word = /^[\p{L}\p{N}]/u.test(text);
  const unspaced = /^[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}\p{sc=Laoo}\p{sc=Khmr}\p{sc=Mymr}]/u;
  return word && !unspaced.test(text) && !/\s$/.test($("text").value) ? ` ${text}` : text;
}

function setBusy(busy) {
  $("go").disabled = busy;
  $("cancel").hidden = !busy;
  $("progress").hidden = !busy;
  $("ask").setAttribute("aria-busy", String(busy));
}

// ---- progress

async function withRetries(request) {
  cancelled = false;
  for (;;) {
    try {
      return await request();
    } catch (problem) {
      if (!problem.wait || cancelled) throw problem;
      say(`${problem.message} (trying again)`);
      await sleep(problem.wait);
      if (cancelled) throw new Problem("Cancelled.", 0, 0);
    }
  }
}

async function follow(submitted, question) {
  job = submitted;
  const timer = setInterval(showProgress, 250);
  try {
    while (job.state === "queued" || job.state === "running") {
      startedAt = performance.now() - 1000 * job.seconds;
      showProgress();
      // Browsers open six connections to a server, for all tabs: another tab must not wait long.
      const query = `wait=2&state=${job.state}&position=${job.position}`;
      job = await withRetries(() => call(`/api/jobs/${job.id}?${query}`));
    }
  } finally {
    clearInterval(timer);
  }
  if (job.state === "done") showResult(job, question);
  else if (job.state === "cancelled") say("Cancelled.");
  else say(job.error, true);
}

function showProgress() {
  if (job.state === "running") {
    const seconds = (performance.now() - startedAt) / 1000;
    say(`Running for ${seconds.toFixed(0)} of at most ${job.time_limit} seconds`);
  } else if (job.state === "queued") {
    const before = job.position === 1 ? "1 analysis" : `${job.position} analyses`;
    const reason = job.ready ? "" : " (the models are being loaded)";
    say(job.position ? `Waiting for ${before}${reason}` : `Waiting${reason}`);
  }
}

async function cancel() {
  cancelled = true;
  if (!job) return;
  say("Cancelling …");
  await call(`/api/jobs/${job.id}`, { method: "DELETE" }).catch((problem) => {
    say(problem.message, true);
  });
}

$("cancel").addEventListener("click", cancel);

// A user who leaves the page does not need the result.
addEventListener("pagehide", () => {
  if (job) fetch(`/api/jobs/${job.id}`, { method: "DELETE", keepalive: true });
});

// ---- the result

function showResult(done, question) {
  const base = `/api/jobs/${done.id}`;
  const links = Object.entries(FORMATS).map(([kind, name]) => {
    const link = document.createElement("a");
    link.href = `${base}/result.${kind}`;
    link.download = `normscope.${kind}`;
    link.textContent = name;
    return link;
  });
  $("tab").href = `${base}/page`;
  $("downloads").replaceChildren(
    ...links.map((link) => {
      const item = document.createElement("li");
      item.append(link);
      return item;
    }),
  );
  // A new frame each time: a new address in the same frame would add a step to the history.
  const frame = $("view").cloneNode();
  frame.src = `${base}/page`;
  frame.title = question === "maps" ? "Maps of the text" : "Shares of the tokens";
  $("view").replaceWith(frame);
  $("result").hidden = false;
  $("stale").hidden = true;
  const gap = done.reconstruction_error;
  const error = gap ? gap.toExponential(1) : "0";
  const seconds = done.seconds.toFixed(1);
  const parts = question === "maps" ? "parts" : "shares";
  say(`Done in ${seconds} seconds. The ${parts} add up to the model's output within ${error}.`);
  $("result").scrollIntoView({ block: "start" });
}

start();

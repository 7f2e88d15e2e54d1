// The form, the progress of an analysis, and its result. Text from outside is set as text only,
// never as HTML.

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
  updateModel();
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

function updateModel() {
  const model = selectedModel();
  $("target-field").hidden = !model.target;
  $("target").required = model.target;
  $("pair-field").hidden = model.target;
  $("text-label").textContent = model.target ? "Source" : "Text";
  $("hint").textContent =
    `At most ${model.max_length} tokens and ${limits.time_limit} seconds per analysis.`;
  $("maps").replaceChildren(
    ...model.maps.map((name) => {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.name = "maps";
      box.value = name;
      box.checked = model.suggested.includes(name);
      label.append(box, ` ${model.titles[name] ?? name}`);
      label.title = name;
      return label;
    }),
  );
  updateHeads();
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

$("model").addEventListener("change", updateModel);
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
  const model = selectedModel();
  const boxes = [...$("maps").querySelectorAll("input:checked:not(:disabled)")];
  if (!boxes.length) {
    say("Select at least one map.", true);
    return;
  }
  const analysis = {
    model: model.name,
    text: $("text").value,
    maps: boxes.map((box) => box.value),
    heads: selectedHeads(),
  };
  if (model.target) analysis.target = $("target").value;
  else if ($("pair").value.trim()) analysis.text_pair = $("pair").value;
  setBusy(true);
  say("Sending …");
  try {
    await follow(await withRetries(() => post("/api/jobs", analysis)));
  } catch (problem) {
    say(problem.message, true);
    if (problem.status === 401) await start();
  } finally {
    job = null;
    setBusy(false);
  }
});

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

async function follow(submitted) {
  job = submitted;
  const timer = setInterval(showProgress, 250);
  try {
    while (job.state === "queued" || job.state === "running") {
      startedAt = performance.now() - 1000 * job.seconds;
      showProgress();
      const query = `wait=15&state=${job.state}&position=${job.position}`;
      job = await withRetries(() => call(`/api/jobs/${job.id}?${query}`));
    }
  } finally {
    clearInterval(timer);
  }
  if (job.state === "done") showResult(job);
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

function showResult(done) {
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
  $("view").replaceWith(frame);
  $("result").hidden = false;
  const error = done.reconstruction_error.toExponential(1);
  const seconds = done.seconds.toFixed(1);
  say(`Done in ${seconds} seconds. The parts add up to the model's output within ${error}.`);
  $("result").scrollIntoView({ block: "start" });
}

start();

// One page over the JSON API. What is asked stands in the address, so that a link is the question; all text goes in as text.
import { draw } from "/assets/charts.js";
import { WORDS } from "/assets/words.js";

const QUESTIONS = ["fit", "plan", "compare", "recommend", "check"];
const START = { ask: "fit", model: "llama-3.1-70b", gpu: "h200-sxm:8", isl: "4096", osl: "1024", concurrency: "64" };
const COLOURS = ["#3b6fd4", "#c2762b", "#4f9d69", "#9a5bb5", "#c04f4f", "#3f9aa8", "#8a7f3d", "#7a7f88", "#b0578d"];
const $ = (id) => document.getElementById(id);
let language = "en", asked = 0, soon = 0;

function word(name) { return WORDS[language][name] ?? name; }

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "click") node.addEventListener("click", value); else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// The question: from the address, to the form, and back.
function state() {
  const found = Object.fromEntries(new URLSearchParams(location.search));
  return Object.keys(found).length ? { ask: "fit", ...found } : { ...START };
}

function splitCount(gpu) {
  const at = (gpu || "").lastIndexOf(":");
  return at > 0 ? [gpu.slice(0, at), gpu.slice(at + 1)] : [gpu || "", ""];
}

const OWN = new Set(["ask", "model", "gpu", "command", "isl", "osl", "concurrency", "ttft", "tpot", "engine", "precision", "serve"]);

function show(question) {
  for (const name of ["model", "command", "ttft", "tpot", "engine", "precision"]) $(name).value = question[name] ?? "";
  const [isl, osl] = (question.serve ?? "").split("/");
  const load = { isl: question.isl ?? isl, osl: question.osl ?? osl, concurrency: question.concurrency };
  for (const name of ["isl", "osl", "concurrency"]) {
    const slider = $(name);
    slider.dataset.exact = load[name] ?? "";
    slider.value = load[name] ? Math.log2(Number(load[name])) : slider.min;
    tell(slider);
  }
  const [card, count] = splitCount(question.gpu);
  $("card").value = card; $("count").value = count; $("several").value = question.gpu ?? "";
  $("extra").value = Object.entries(question).filter(([name]) => !OWN.has(name)).map((pair) => pair.join(" ")).join("\n");
  for (const field of document.querySelectorAll("[data-for]")) field.hidden = !field.dataset.for.split(" ").includes(question.ask);
  for (const button of $("questions").querySelectorAll("button")) {
    if (button.dataset.ask === question.ask) button.setAttribute("aria-current", "page"); else button.removeAttribute("aria-current");
  }
}

function tell(slider) {
  const least = slider.min === slider.value, value = slider.dataset.exact;
  slider.parentElement.querySelector("output").textContent = value ? Number(value).toLocaleString("en") : least ? word("off") : "";
  slider.setAttribute("aria-valuetext", value || word("off"));
}

function read() {
  const ask = document.querySelector("#questions [aria-current]").dataset.ask, found = { ask };
  for (const name of ["model", "command", "ttft", "tpot", "engine", "precision"]) {
    const value = $(name).value.trim();
    if (value && !$(name).closest("[data-for]").hidden) found[name] = value;
  }
  if (ask === "compare") found.gpu = $("several").value.trim();
  else if (ask !== "recommend") {
    const card = $("card").value.trim(), count = $("count").value.trim();
    if (card) found.gpu = count ? `${card}:${count}` : card;
  }
  for (const name of ["isl", "osl", "concurrency"]) if ($(name).dataset.exact) found[name] = $(name).dataset.exact;
  for (const row of $("extra").value.split("\n")) {
    const [name, ...value] = row.trim().replace(/^--/, "").split(/[\s=]+/);
    if (name) found[name.replaceAll("-", "_")] = value.join(" ") || "true";
  }
  return found;
}

function go(question) {
  history.pushState(null, "", `?${new URLSearchParams(question)}`);
  show(question);
  answer(question);
}

// The answer.
async function answer(question) {
  const mine = ++asked, box = $("answer"), { ask, ...words } = question;
  box.setAttribute("aria-busy", "true");
  let shown;
  try {
    const told = ask === "check"
      ? await fetch("/api/check", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(words) })
      : await fetch(`/api/${encodeURIComponent(ask)}?${new URLSearchParams(words)}`);
    const found = await told.json();
    shown = found.error ? [verdict(false, found.error)] : render(question, found, told.headers.get("X-Answer") === "yes");
  } catch {
    shown = [verdict(false, word("failed"))];
  }
  if (mine !== asked) return;
  box.replaceChildren(...shown);
  box.setAttribute("aria-busy", "false");
}

function render(question, found, yes) {
  if (found.plans) return plansOf(question, found, yes);
  if (found.choices) return choicesOf(question, found);
  if (found.candidates) return candidatesOf(question, found);
  return [...estimateOf(question, found, yes), picture(question)];
}

function verdict(yes, text, small) {
  return make("p", { class: `verdict ${yes ? "yes" : "no"}`, role: "status" }, text, small ? make("small", {}, small) : null);
}

// Green is what starts, carries its load and holds each target at even odds or better.
function estimateOf(question, found, yes) {
  const missed = !yes || (found.targets ?? []).some((one) => one.probability < 0.5);
  const headline = found.fits ? word(missed ? "carriesNot" : "fits") : word("fitsNot");
  const probability = found.verdict?.probability;
  const sure = probability === undefined ? "" : `, ${probability > 0.99 ? "> 99" : Math.round(100 * probability)} % ${word("sure")}`;
  return [
    verdict(found.fits && !missed, headline + sure, found.reason),
    ...memoryOf(found), ...speedOf(found), ...remediesOf(question, found), ...commandOf(found), ...notesOf(found),
  ];
}

const GIB = 2 ** 30;
const gib = (bytes) => (bytes / GIB).toFixed(2);

function memoryOf(found) {
  const memory = found.memory;
  if (!memory) return [];
  const items = memory.items.filter((item) => item.bytes > 0), scale = Math.max(memory.capacity_bytes, memory.total_bytes);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const label = items.map((item) => `${item.name} ${gib(item.bytes)} GiB`).join(", ");
  svg.setAttribute("viewBox", "0 0 1000 20"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("role", "img"); svg.setAttribute("aria-label", label);
  let left = 0;
  items.forEach((item, at) => {
    const width = 1000 * item.bytes / scale, rectangle = document.createElementNS(svg.namespaceURI, "rect");
    for (const [name, value] of Object.entries({ x: left, y: 0, width, height: 20, fill: COLOURS[at % COLOURS.length] })) rectangle.setAttribute(name, value);
    const title = document.createElementNS(svg.namespaceURI, "title");
    title.textContent = `${item.name} ${gib(item.bytes)} GiB`;
    rectangle.append(title); svg.append(rectangle);
    left += width;
  });
  const limit = document.createElementNS(svg.namespaceURI, "rect");
  for (const [name, value] of Object.entries({ x: 1000 * memory.capacity_bytes / scale - 3, y: 0, width: 3, height: 20, fill: "currentColor" })) limit.setAttribute(name, value);
  svg.append(limit);
  const rows = items.map((item) => [item.name.replaceAll("_", " "), gib(item.bytes), range(item.low_bytes, item.high_bytes, gib)]);
  rows.push([word("total"), gib(memory.total_bytes), range(memory.total_low_bytes, memory.total_high_bytes, gib)], [word("capacity"), gib(memory.capacity_bytes), ""]);
  return [make("h2", {}, word("memory")), make("div", { class: "memory" }, svg), table([word("line"), word("gib"), word("range")], rows, [1, 2])];
}

function range(low, high, as) { return low === undefined || low === null ? "" : `${as(low)} – ${as(high)}`; }

function table(head, rows, numbers = []) {
  const cell = (tag, text, at) => make(tag, numbers.includes(at) ? { class: "number" } : {}, text ?? "");
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": head.join(", ") }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text, at) => cell("th", text, at)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text, at) => cell("td", text, at)))))));
}

const short = (value) => value >= 100 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toString();

function figure(one, unit = "") {
  return one ? `${short(one.value)}${unit} (${short(one.low)} – ${short(one.high)})` : null;
}

function speedOf(found) {
  const speed = found.speed ?? {}, cost = found.cost ?? {}, cache = found.kv_cache, rows = [
    [word("first"), figure(speed.ttft_ms, " ms")], [word("each"), figure(speed.tpot_ms, " ms")], [word("rate"), figure(speed.output_tokens_per_s)],
    [word("step"), figure(speed.step_s, " s")], ["MFU", figure(speed.mfu)],
    [word("bound"), found.bottleneck ? `${found.bottleneck.resource.replaceAll("_", " ")}: ${found.bottleneck.detail}` : null],
    [word("cache"), cache?.tokens ? `${Math.round(cache.tokens).toLocaleString("en")} ${word("tokens")}, ${short(cache.max_concurrency ?? 0)} ${word("atOnce")}` : null],
    [word("cost"), cost.usd_per_hour ? `$${short(cost.usd_per_hour.value ?? cost.usd_per_hour)}/h` : null],
  ].filter(([, value]) => value);
  return rows.length ? [make("h2", {}, word("speed")), make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))] : [];
}

function remediesOf(question, found) {
  if (!found.remedies?.length) return [];
  const [card] = splitCount(question.gpu);
  return [make("h2", {}, word("remedies")), ...found.remedies.map((one) => make("div", { class: "remedy" },
    make("button", { type: "button", click: () => go({ ask: "check", command: one.flags, gpu: card, ...loadOf(question) }) }, word("tryIt")),
    make("p", {}, make("strong", {}, one.change), `: ${one.effect}`)))];
}

function loadOf(question) {
  return Object.fromEntries(["isl", "osl", "concurrency"].filter((name) => question[name]).map((name) => [name, question[name]]));
}

function commandOf(found) {
  const lines = [found.command, ...(found.commands ?? []).map((one) => one.command)].filter(Boolean);
  return lines.length ? [make("h2", {}, word("run")), ...lines.map((line) => make("pre", { tabindex: "0" }, line))] : [];
}

function notesOf(found) {
  const notes = (found.warnings ?? []).map((one) => one.message ?? one);
  return notes.length ? [make("h2", {}, word("notes")), make("ul", { class: "notes" }, ...notes.map((text) => make("li", {}, text)))] : [];
}

// The chart of the answer, live; where it cannot be drawn here, as an image of the server; where there is none, nothing.
function picture(question) {
  if (question.ask === "check" || question.ask === "recommend") return "";
  const query = new URLSearchParams(question), box = make("div", { class: "chart", role: "img", "aria-label": word("chart") });
  const all = make("div", {}, make("h2", {}, word("chart")), box);
  draw(box, query).then((done) => {
    if (done) return;
    const image = make("img", { class: "chart", alt: word("chart"), src: `/api/chart.svg?${query}` });
    image.addEventListener("error", () => all.remove());
    box.replaceWith(image);
  });
  return all;
}

function plansOf(question, found, meets) {
  const head = [word("layout"), word("weights"), word("gpus"), word("first"), word("each"), word("rate"), word("perHour")];
  const rows = found.plans.slice(0, 8).map((one) => [
    one.inputs.plan.summary, one.inputs.model.quantization ?? "–", String(one.inputs.cluster.gpus), figure(one.speed?.ttft_ms, " ms") ?? figure(one.speed?.step_s, " s"), figure(one.speed?.tpot_ms, " ms"),
    figure(one.speed?.output_tokens_per_s ?? one.speed?.tokens_per_s_per_gpu), one.cost?.usd_per_hour ? `$${short(one.cost.usd_per_hour.value ?? one.cost.usd_per_hour)}` : ""]);
  const first = found.plans[0];
  return [verdict(meets, meets ? first.inputs.plan.summary : word("noPlan"), first ? first.reason : ""),
    ...(rows.length ? [make("h2", {}, word("plans")), table(head, rows, [2, 3, 4, 5, 6])] : []), ...(first ? estimateOf(question, first, meets).slice(1) : []), picture(question)];
}

function choicesOf(question, found) {
  const first = found.choices[0];
  const rows = found.choices.map((one) => [`${one.count} × ${one.name}`, one.layout, one.weights, one.usd_per_hour ? `$${short(one.usd_per_hour)}` : "–", one.why]);
  const notes = [...found.assumed, ...found.left_out.map((one) => `${one.count}: ${one.why}`)];
  return [verdict(Boolean(first), first ? `${first.count} × ${first.name}` : word("noPlan"), first?.why),
    ...(first ? [table([word("gpus"), word("layout"), word("weights"), word("perHour"), word("why")], rows, [3])] : []),
    ...(first ? estimateOf(question, first.estimate, true).slice(1) : []), make("ul", { class: "notes" }, ...notes.map((text) => make("li", {}, text)))];
}

function candidatesOf(question, found) {
  const rows = found.candidates.map((one) => {
    const best = one.best ?? one.published;
    return [`${one.gpus} × ${one.accelerator.name}`, best ? best.inputs.plan.summary : one.refused ?? word("fitsNot"), figure(best?.speed?.ttft_ms, " ms"), figure(best?.speed?.tpot_ms, " ms"),
      figure(best?.speed?.output_tokens_per_s), best?.cost?.usd_per_hour ? `$${short(best.cost.usd_per_hour.value ?? best.cost.usd_per_hour)}` : "–"];
  });
  const meet = found.candidates.filter((one) => one.best_meets_targets).map((one) => `${one.gpus} × ${one.accelerator.name}`);
  return [verdict(meet.length > 0, meet.length ? `${meet.join(", ")}: ${word("meet")}` : word("noPlan")), table([word("gpus"), word("layout"), word("first"), word("each"), word("rate"), word("perHour")], rows, [2, 3, 4, 5]), picture(question)];
}

// Words, colours, buttons.
function speak() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-word]")) node.textContent = word(node.dataset.word);
  for (const button of $("questions").querySelectorAll("button")) button.textContent = word(button.dataset.ask);
  $("language").textContent = language === "zh" ? "English" : "中文";
  $("language").lang = language === "zh" ? "en" : "zh";
  dress(document.documentElement.dataset.theme);
}

function dress(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = word(theme === "dark" ? "light" : "theme");
}

async function copy(button, text) {
  await navigator.clipboard.writeText(text);
  button.textContent = word("copied");
  setTimeout(() => { button.textContent = word(button.dataset.word); }, 1500);
}

function commandLine(question) {
  const quoted = (text) => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const { ask, model, gpu, command, isl, osl, ...rest } = question, words = ["trilemma", ask];
  if (model && ask !== "check") words.push(quoted(model));
  if (gpu) for (const one of ask === "compare" ? gpu.split(",") : [gpu]) words.push("--gpu", quoted(one.trim()));
  if (isl && osl && ask !== "fit" && ask !== "check") words.push("--serve", `${isl}/${osl}`);
  else { if (isl) words.push("--isl", isl); if (osl) words.push("--osl", osl); }
  for (const [name, value] of Object.entries(rest)) words.push(`--${name.replaceAll("_", "-")}`, ...(value === "true" ? [] : [quoted(value)]));
  return words.join(" ") + (ask === "check" ? ` -- ${command ?? ""}` : "");
}

function later() {
  clearTimeout(soon);
  soon = setTimeout(() => go(read()), 250);
}

async function begin() {
  for (const ask of QUESTIONS) {
    $("questions").append(make("li", {}, make("button", { type: "button", "data-ask": ask, click: () => go({ ...read(), ask }) }, word(ask))));
  }
  for (const name of ["isl", "osl", "concurrency"]) {
    $(name).addEventListener("input", () => {
      const slider = $(name);
      slider.dataset.exact = slider.value === slider.min ? "" : String(Math.round(2 ** Number(slider.value)));
      tell(slider);
      later();
    });
  }
  for (const name of ["model", "card", "count", "several", "ttft", "tpot", "engine", "precision"]) $(name).addEventListener("change", later);
  $("form").addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(soon); go(read()); $("answer").focus(); });
  $("share").addEventListener("click", () => copy($("share"), location.href));
  $("copy").addEventListener("click", () => copy($("copy"), commandLine(read())));
  $("language").addEventListener("click", () => { language = language === "zh" ? "en" : "zh"; speak(); show(read()); answer(state()); });
  $("theme").addEventListener("click", () => dress(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  addEventListener("popstate", () => { show(state()); answer(state()); });
  if (navigator.language.startsWith("zh")) language = "zh";
  dress(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  speak();
  show(state());
  answer(state());
  const catalogue = await (await fetch("/api/catalogue")).json();
  $("models").append(...catalogue.models.map((one) => make("option", { value: one.name }, one.hub)));
  $("cards").append(...catalogue.cards.map((one) => make("option", { value: one.id }, one.name)));
}

begin();

// The page: one section an experiment, made once and updated in place, so that zoom, scroll and choices stay.

const settings = JSON.parse(document.getElementById("settings").textContent);
const still = document.getElementById("content"); // the content of a page that is a file
const sections = new Map(); // by key of an experiment
const FEW = 20; // settings up to which all have a chip, and need no search
let latest = null, tag = null, find = "", timer = null;

/** The choices of the reader: settings that are drawn and not drawn against the default, by KEY/SETTING. */
const chosen = new Map();
function isDrawn(experiment, name) {
  const given = chosen.get(`${experiment.key}/${name}`);
  return given !== undefined ? given : experiment.settings.some((s) => s.name === name && s.drawn_first);
}

function toggle(experiment, name, on) {
  chosen.set(`${experiment.key}/${name}`, on);
  show(latest);
  if (!still && on) poll(); // its curve may not be here yet
}

/** Fill an element anew only if its data changed; the focus stays where it was. */
function fill(element, data, make) {
  const now = JSON.stringify([data, DARK.matches]);
  if (element.dataset.now === now) return;
  const focused = document.activeElement?.id;
  element.replaceChildren(...make().filter(Boolean));
  element.dataset.now = now;
  if (focused && element.contains(document.getElementById(focused))) document.getElementById(focused).focus({ preventScroll: true });
}

function section(experiment) {
  const parts = {};
  for (const name of ["progress", "notices", "chips", "panels", "bars", "search", "table", "troubles"]) parts[name] = el("div", { class: name });
  const select = el("select", { id: `best-${experiment.key}`, on: { change: () => showBest(experiment.key) } });
  parts.best = el("div", { class: "best" });
  parts.select = select;
  const best = el("details", { on: { toggle: (event) => event.target.open && showBest(experiment.key) } }, el("summary", {}, "Best configurations of the agents"),
    el("p", {}, el("label", { for: select.id }, "setting "), select), parts.best);
  parts.search.append(el("label", {}, "find settings ", el("input", { type: "search", id: `find-${experiment.key}`, on: { input: searched } })));
  const element = el("section", { "aria-label": experiment.name }, el("h2", {}, experiment.name), parts.progress, parts.notices, parts.chips,
    parts.panels, parts.bars, el("h3", {}, "Settings"), parts.search, parts.table, parts.troubles, best);
  document.getElementById("experiments").append(element);
  return { element, parts, figures: new Map(), details: best };
}

let waiting = null;
function searched(event) {
  find = event.target.value;
  clearTimeout(waiting);
  waiting = setTimeout(() => (still ? show(latest) : poll()), 250);
}

function showExperiment(experiment) {
  if (!sections.has(experiment.key)) sections.set(experiment.key, section(experiment));
  const { parts, figures, details } = sections.get(experiment.key), flip = (name, on) => toggle(experiment, name, on);
  experiment.settings.forEach((s) => look(experiment.key, s.name)); // colours go by the first order
  const drawn = experiment.settings.filter((s) => isDrawn(experiment, s.name)).slice(0, latest.most_drawn);
  fill(parts.progress, [experiment.counts, experiment.rounds, experiment.exists], () => progress(experiment));
  fill(parts.notices, experiment.private, () => experiment.private.map((words) => el("p", { class: "notice" }, words)));
  const chips = experiment.settings.length <= FEW ? experiment.settings : drawn;
  fill(parts.chips, chips.map((s) => [s.name, s.label, isDrawn(experiment, s.name)]), () => [el("fieldset", {}, el("legend", {}, "drawn in all charts"),
    chips.map((s) => chip(experiment, s, flip)))]);
  experiment.panels.forEach((panel) => showPanel(experiment, panel, drawn, parts.panels, figures));
  const panels = experiment.panels.map(panelKey);
  for (const block of parts.panels.children) block.hidden = !panels.includes(block.dataset.panel); // its runs were removed
  fill(parts.bars, [drawn.map((s) => [s.name, s.epsilon]), experiment.notes], () => epsilonBars(experiment, drawn));
  parts.search.hidden = experiment.n_settings <= FEW;
  const rows = find ? { ...experiment, settings: experiment.settings.filter((s) => s.label.toLowerCase().includes(find.toLowerCase())) } : experiment;
  fill(parts.table, rows.settings.map((s) => [{ ...s, curve: null }, isDrawn(experiment, s.name)]), () => settingsTable(rows, (name) => isDrawn(experiment, name), flip));
  fill(parts.troubles, [experiment.failed, experiment.faults, experiment.n_failed, experiment.n_faults], () => troubles(experiment));
  const finished = experiment.settings.filter((s) => s.counts.done && !s.hidden), before = parts.select.value;
  details.hidden = !finished.length;
  fill(parts.select, finished.map((s) => [s.name, s.label]), () => finished.map((s) => el("option", { value: s.name }, s.label)));
  if (finished.some((s) => s.name === before)) parts.select.value = before;
}

function chip(experiment, setting, flip) {
  const id = `chip-${experiment.key}-${setting.name}`;
  const box = el("input", { type: "checkbox", id, on: { change: (event) => flip(setting.name, event.target.checked) } });
  box.checked = isDrawn(experiment, setting.name);
  return el("label", { class: "chip", for: id }, box, swatch(experiment.key, setting.name), setting.label);
}

function panelKey(panel) {
  return JSON.stringify([panel.problem, panel.metric, panel.lower_is_better]);
}

function showPanel(experiment, panel, drawn, parent, figures) {
  const key = panelKey(panel);
  if (!figures.has(key)) {
    const own = {};
    for (const name of Object.keys(CHARTS)) own[name] = el("figure", {}, el("figcaption"), el("div", { class: "plot", role: "img" }), el("div", { class: "notes" }));
    const title = `${panel.problem} · ${panel.metric}, ${panel.lower_is_better ? "lower" : "higher"} is better`;
    parent.append(el("div", { "data-panel": key }, el("h3", {}, title), el("div", { class: "charts" }, Object.values(own))));
    figures.set(key, own);
  }
  const within = (s) => panel.settings.includes(s.name), own = drawn.filter(within);
  const others = experiment.settings.filter((s) => within(s) && !own.includes(s));
  for (const [name, make] of Object.entries(CHARTS)) draw(figures.get(key)[name], make(experiment, panel, own, others), `${panel.problem}, settings ${own.map((s) => s.label).join(", ")}`);
}

async function showBest(key) {
  const { parts } = sections.get(key), name = parts.select.value;
  if (!name) return;
  const found = still ? latest.best[`${key}/${name}`] : await ask("best.json", { experiment: key, setting: name });
  const missing = { words: "not part of this file: python -m runners.best has them", columns: [], rows: [] };
  if (parts.select.value === name) fill(parts.best, [name, found], () => bestTable(found || missing));
}

function show(content) {
  latest = content;
  for (const [key, { element }] of sections) {
    if (!content.experiments.some((e) => e.key === key)) { element.remove(); sections.delete(key); }
  }
  content.experiments.forEach(showExperiment);
  document.title = `${content.experiments.map((e) => e.name).join(", ")} · dpfbo board`;
  showTime();
}

function showTime() {
  if (latest === null) return;
  const changed = Math.max(...latest.experiments.map((e) => e.changed || 0));
  const when = changed ? `last change ${new Date(1000 * changed).toLocaleString()} (${ago(Date.now() / 1000 - changed)})` : "nothing has begun yet";
  document.getElementById("when").textContent = still ? `${when}; this page is a file and does not change` : `${when}; asked every ${settings.every} s`;
}

function ask(path, query, headers = {}) {
  const words = new URLSearchParams(settings.token ? { token: settings.token } : {});
  for (const [key, values] of Object.entries(query)) for (const value of [values].flat()) words.append(key, value);
  return fetch(`${path}?${words}`, { headers, cache: "no-store" }).then((answer) => {
    if (answer.status === 304) return null;
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    tag = path === "content.json" ? answer.headers.get("ETag") : tag;
    return answer.json();
  });
}

/** The query for the curves that are wanted: none until the reader has chosen. */
function wanted() {
  if (!chosen.size || latest === null) return {};
  const names = latest.experiments.flatMap((e) => e.settings.filter((s) => isDrawn(e, s.name)).map((s) => `${e.key}/${s.name}`));
  return names.length ? { draw: names } : { none: "1" };
}

async function poll() {
  clearTimeout(timer);
  const trouble = document.getElementById("trouble");
  try {
    const query = { ...wanted(), ...(find ? { find } : {}) };
    const content = await ask("content.json", query, tag ? { "If-None-Match": tag } : {});
    if (content !== null) show(content);
    trouble.hidden = true;
  } catch (error) {
    trouble.textContent = `The board does not answer (${error.message}); these are its last numbers.`;
    trouble.hidden = false;
  }
  showTime();
  timer = setTimeout(poll, 1000 * settings.every);
}

DARK.addEventListener("change", () => latest && show(latest));
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : !still && poll()));
if (still) show(JSON.parse(still.textContent));
else poll();

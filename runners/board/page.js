// The page: each experiment has a section, which is made once and updated in place, so that zoom, scroll and choices stay.

const settings = JSON.parse(document.getElementById("settings").textContent);
const still = document.getElementById("content"); // the content of a page that is a file
const sections = new Map(); // by key of an experiment
const chosen = new Map(); // by KEY/SETTING: whether the reader chose to draw it
const FEW = 20; // largest number of settings without a search field
let latest = null, find = "", timer = null, waiting = null;

function isDrawn(experiment, setting) {
  return chosen.get(`${experiment.key}/${setting.name}`) ?? setting.drawn_first;
}

/** Refill an element if its data changed; the focus stays where it was. */
function fill(element, data, make) {
  const now = JSON.stringify(data), focused = document.activeElement?.id;
  if (element.now === now) return;
  element.now = now;
  const inside = element.contains(document.activeElement);
  element.replaceChildren(...make().filter(Boolean));
  if (inside && focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function section(experiment) {
  const parts = Object.fromEntries(["progress", "notices", "legend", "panels", "search", "table", "troubles", "best"].map((name) => [name, el("div", { class: name })]));
  const again = () => showBest(experiment.key);
  parts.select = el("select", { on: { change: again } });
  parts.details = el("details", { on: { toggle: (event) => event.target.open && again() } }, el("summary", {}, "Best configurations of the agents"),
    el("p", {}, el("label", {}, "setting ", parts.select)), parts.best);
  parts.search.append(el("label", {}, "find settings ", el("input", { type: "search", on: { input: searched } })));
  const element = el("section", { "aria-label": experiment.name }, el("h2", {}, experiment.name), parts.progress, parts.notices, parts.legend,
    parts.panels, el("h3", {}, "Settings"), parts.search, parts.table, parts.troubles, parts.details);
  document.getElementById("experiments").append(element);
  return { element, parts, figures: new Map() };
}

function searched(event) {
  find = event.target.value;
  clearTimeout(waiting);
  waiting = setTimeout(() => (still ? show(latest) : poll()), 250);
}

function showExperiment(experiment) {
  if (!sections.has(experiment.key)) sections.set(experiment.key, section(experiment));
  const { parts, figures } = sections.get(experiment.key);
  const toggle = (name, on) => {
    chosen.set(`${experiment.key}/${name}`, on);
    show(latest);
    if (!still && on) poll(); // its curve may not be here yet
  };
  experiment.settings.forEach((s) => look(experiment, s.name)); // the first order fixes the colours
  const drawn = experiment.settings.filter((s) => isDrawn(experiment, s)).slice(0, latest.most_drawn);
  fill(parts.progress, [experiment.counts, experiment.rounds, experiment.exists], () => progress(experiment));
  fill(parts.notices, experiment.private, () => experiment.private.map((words) => el("p", { class: "notice" }, words)));
  fill(parts.legend, drawn.map((s) => [s.name, s.label]), () => drawn.map((s) => el("span", {}, swatch(experiment, s.name), s.label)));
  experiment.panels.forEach((panel) => showPanel(experiment, panel, drawn, parts.panels, figures));
  const panels = experiment.panels.map(panelKey);
  for (const block of parts.panels.children) block.hidden = !panels.includes(block.dataset.panel); // hides panels whose runs were removed
  parts.search.hidden = experiment.n_settings <= FEW;
  const listed = experiment.settings.filter((s) => s.label.toLowerCase().includes(find.toLowerCase()));
  fill(parts.table, listed.map((s) => [{ ...s, curve: null }, isDrawn(experiment, s)]), () => settingsTable(experiment, listed, (s) => isDrawn(experiment, s), toggle));
  fill(parts.troubles, [experiment.failed, experiment.faults, experiment.n_failed, experiment.n_faults], () => troubles(experiment));
  const finished = experiment.settings.filter((s) => s.counts.done && !s.hidden), before = parts.select.value;
  parts.details.hidden = !finished.length;
  fill(parts.select, finished.map((s) => [s.name, s.label]), () => finished.map((s) => el("option", { value: s.name }, s.label)));
  if (finished.some((s) => s.name === before)) parts.select.value = before;
}

function panelKey(panel) {
  return JSON.stringify([panel.problem, panel.metric, panel.lower_is_better]);
}

function showPanel(experiment, panel, drawn, parent, figures) {
  const key = panelKey(panel), own = drawn.filter((s) => panel.settings.includes(s.name));
  if (!figures.has(key)) {
    const made = Object.keys(CHARTS).map(() => el("figure", {}, el("figcaption"), el("div", { class: "plot", role: "img" }), el("div", { class: "notes" })));
    const title = `${panel.problem} · ${panel.metric}, ${panel.lower_is_better ? "lower" : "higher"} is better`;
    parent.append(el("div", { "data-panel": key }, el("h3", {}, title), el("div", { class: "charts" }, made)));
    figures.set(key, made);
  }
  const label = `${panel.problem}, settings ${own.map((s) => s.label).join(", ")}`;
  Object.values(CHARTS).forEach((make, k) => draw(figures.get(key)[k], make(experiment, panel, own), label));
}

async function showBest(key) {
  const { parts } = sections.get(key), name = parts.select.value;
  if (!name) return;
  const found = still ? latest.best[`${key}/${name}`] : await ask("best.json", { experiment: key, setting: name });
  const missing = { words: "not part of this file: python -m runners.best shows them", columns: [], rows: [] };
  if (parts.select.value === name) fill(parts.best, [name, found], () => bestTable(found || missing));
}

function show(content) {
  latest = content;
  for (const [key, { element }] of sections) {
    if (!content.experiments.some((e) => e.key === key)) { element.remove(); sections.delete(key); }
  }
  content.experiments.forEach(showExperiment);
  document.title = `${content.experiments.map((e) => e.name).join(", ")} · dpfbo board`;
  const changed = Math.max(...content.experiments.map((e) => e.changed || 0));
  const when = changed ? `last change ${new Date(1000 * changed).toLocaleString()}` : "nothing has begun yet";
  document.getElementById("when").textContent = still ? `${when}; this page is a file and does not change` : `${when}; updated every ${settings.every} s`;
}

async function ask(path, query) {
  const words = new URLSearchParams(settings.token ? { token: settings.token } : {});
  for (const [key, values] of Object.entries(query)) for (const value of [values].flat()) words.append(key, value);
  const answer = await fetch(`${path}?${words}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

/** The query for the wanted curves; empty until the reader has chosen some. */
function wanted() {
  if (!chosen.size || latest === null) return {};
  const names = latest.experiments.flatMap((e) => e.settings.filter((s) => isDrawn(e, s)).map((s) => `${e.key}/${s.name}`));
  return names.length ? { draw: names } : { none: "1" };
}

async function poll() {
  clearTimeout(timer);
  const trouble = document.getElementById("trouble");
  try {
    show(await ask("content.json", { ...wanted(), find }));
    trouble.hidden = true;
  } catch (error) {
    trouble.textContent = `The board does not answer (${error.message}); these are its last numbers.`;
    trouble.hidden = false;
  }
  timer = setTimeout(poll, 1000 * settings.every);
}

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : !still && poll()));
if (still) show(JSON.parse(still.textContent));
else poll();

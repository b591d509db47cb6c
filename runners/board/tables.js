// Progress, bars of epsilon and tables of one experiment.

const PHASE_ORDER = ["done", "running", "interrupted", "failed", "unreadable", "waiting"];

function progress(experiment) {
  const { ended, all } = experiment.rounds, total = Math.max(experiment.trials, 1);
  const parts = PHASE_ORDER.filter((phase) => experiment.counts[phase] && phase !== "waiting").map((phase) =>
    el("span", { class: `part ${phase}`, style: null, "data-share": experiment.counts[phase] / total, title: `${experiment.counts[phase]} ${phase}` }));
  for (const part of parts) part.style.width = `${100 * part.dataset.share}%`;
  const percent = all ? Math.floor((100 * ended) / all) : 0;
  const words = experiment.exists ? countsInWords(experiment.counts, experiment.trials) : "this folder is not there";
  return [
    el("p", { class: "counts" }, el("strong", {}, words), ` · ${percent}% of all rounds · ${experiment.n_settings} settings · ${experiment.folder}`),
    el("div", { class: "bar", role: "progressbar", "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `${experiment.name}: ${words}` }, parts),
  ];
}

/** A bar for each setting that spends epsilon: how much of its budget or target it has spent. */
function epsilonBars(experiment, settings) {
  const spent = spending(settings);
  const others = settings.filter((s) => s.epsilon && !spent.includes(s));
  if (!spent.length && !others.some((s) => s.epsilon.none || s.epsilon.claim)) return [];
  const limits = spent.map((s) => Math.max(s.epsilon.budget || 0, s.epsilon.target || 0, s.epsilon.spent));
  const end = Math.max(...limits, 0);
  const rows = spent.map((s) => {
    const e = s.epsilon, limit = e.budget ?? e.target, over = limit !== null && e.spent > limit * (1 + 1e-9);
    const bar = el("span", { class: over ? "spent over" : "spent" }), room = el("span", { class: "limit" });
    bar.style.width = `${(100 * e.spent) / end}%`;
    bar.style.background = over ? "" : look(experiment.key, s.name).colour;
    room.style.left = `${(100 * (limit || 0)) / end}%`;
    const of = [e.budget !== null && `budget ${digits(e.budget)}${e.budget_delta ? ` at ${e.budget_delta}` : ""}`, e.target !== null && `target ${digits(e.target)}`].filter(Boolean);
    const words = `ε ${digits(e.spent)}${of.length ? ` of ${of.join(", ")}` : ", no limit set"}${e.so_far ? ", so far" : ""}${over ? " — above its limit" : ""}`;
    return el("li", {}, el("span", { class: "name" }, swatch(experiment.key, s.name), s.label), el("span", { class: "words" }, words),
      el("span", { class: "track", "aria-hidden": "true" }, bar, limit !== null && room));
  });
  const notes = notesOf(experiment, spent), limited = spent.some((s) => s.epsilon.budget !== null || s.epsilon.target !== null);
  const sums = spent.some((s) => s.epsilon.real) ? " Each seed of a real release has a ledger of its own: on the same data they add up." : "";
  const sofar = spent.some((s) => s.epsilon.so_far) ? " So far: as the runs last noted it; a ledger may already hold more." : "";
  const infinite = others.filter((s) => s.epsilon.none || s.epsilon.claim).map((s) => s.label);
  const nothing = others.filter((s) => s.epsilon.nothing).map((s) => s.label);
  return [
    el("h3", {}, "Epsilon spent"), el("ul", { class: "bars" }, rows),
    el("p", { class: "notes" }, [...notes.map((note) => `${note}.`), spent.length ? `Largest of a setting's seeds${limited ? "; the mark is the limit" : ""}.${sums}${sofar}` : "",
      infinite.length ? `No finite ε: ${some(infinite)}.` : "", nothing.length ? `Nothing released, ε = 0: ${some(nothing)}.` : ""].filter(Boolean).join(" ")),
  ];
}

/** The table of settings. toggle: called with a name and whether it shall be drawn. */
function settingsTable(experiment, isDrawn, toggle) {
  const rows = experiment.settings.map((s) => {
    const at = s.at ? (s.at[0] === s.at[1] ? `${s.at[0]}` : `${s.at[0]}..${s.at[1]}`) + ` / ${s.rounds ?? "?"}` : `${s.rounds ?? "?"}`;
    const id = `row-${experiment.key}-${s.name}`;
    const box = el("input", { type: "checkbox", id, on: { change: (event) => toggle(s.name, event.target.checked) } });
    box.checked = isDrawn(s.name);
    const metric = s.hidden && (s.at || s.counts.done) ? "private" : s.final ? withError(s.final) : s.so_far ? `(${withError(s.so_far)})` : "–";
    const of_agents = Object.entries(s.spread).map(([percent, value]) => `${percent}% ${digits(value)}`);
    const bad = ["failed", "interrupted", "unreadable"].filter((phase) => s.counts[phase]).map((phase) => `, ${s.counts[phase]} ${phase}`).join("");
    const running = s.counts.running ? `, ${s.counts.running} running` : "";
    return el("tr", {},
      el("th", { scope: "row" }, el("label", { for: id }, box, swatch(experiment.key, s.name), el("span", {}, s.label))),
      cell("seeds", s.seeds), cell("done", `${s.counts.done || 0}/${s.trials}${running}${bad}`), cell("round", at),
      cell(s.metric ? s.metric.replaceAll("_", " ") : "metric", of_agents.length ? [metric, el("br"), el("small", {}, `agents: ${of_agents.join(", ")}`)] : metric, s.hidden), cell("ε", epsilonInWords(s.epsilon)));
  });
  const metrics = new Set(experiment.settings.map((s) => s.metric).filter(Boolean));
  const metric = metrics.size === 1 ? [...metrics][0].replaceAll("_", " ") : "metric";
  const heads = ["setting (drawn if checked)", "seeds", "done", "round", `${metric} ± SE`, "ε"].map((text) => el("th", { scope: "col" }, text));
  const left = experiment.n_settings - experiment.settings.length;
  return [
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "settings" }, el("table", { class: "settings" }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows))),
    el("p", { class: "notes" }, `Mean of the finished seeds ± standard error; in brackets: of all begun seeds, so far.${experiment.settings.some((s) => Object.keys(s.spread).length) ? " Agents: quantiles over the agents of a run, mean of its finished seeds." : ""}${left > 0 ? ` ${left} more settings: running ones, then the best are listed; find others by their names.` : ""}`),
  ];
}

function cell(name, text, title) {
  return el("td", { "data-name": name, title: title || null }, text);
}

/** The failed trials and unreadable files. */
function troubles(experiment) {
  const list = (title, entries, n) => n === 0 ? [] : [
    el("h3", {}, `${title} (${n})`),
    el("ul", { class: "sentences" }, entries.map((f) => el("li", {}, el("b", {}, f.label), f.seed === null ? "" : `, seed ${f.seed}`, `: ${f.words}`))),
    n > entries.length ? el("p", { class: "notes" }, `and ${n - entries.length} more`) : null,
  ];
  return [...list("Failed trials", experiment.failed, experiment.n_failed), ...list("Unreadable files", experiment.faults, experiment.n_faults)];
}

/** The best configurations of one setting. */
function bestTable(found) {
  const head = found.columns.map((name) => el("th", { scope: "col" }, name));
  const body = found.rows.map((row) => el("tr", {}, found.columns.map((name) => cell(name, row[name] === undefined ? "" : String(row[name])))));
  return [
    found.words ? el("p", { class: "notes" }, found.words) : null,
    found.rows.length ? el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "best configurations" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body))) : null,
  ].filter(Boolean);
}

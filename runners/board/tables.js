// The progress bar and the tables of one experiment.

function progress(experiment) {
  const { ended, all } = experiment.rounds, total = Math.max(experiment.trials, 1);
  const phases = Object.entries(experiment.counts).filter(([phase]) => phase !== "waiting");
  const parts = phases.map(([phase, n]) => el("span", { class: `part ${phase}`, style: `width: ${(100 * n) / total}%`, title: `${n} ${phase}` }));
  const percent = all ? Math.floor((100 * ended) / all) : 0;
  const words = experiment.exists ? countsInWords(experiment.counts, experiment.trials) : "this folder does not exist";
  return [
    el("p", { class: "counts" }, el("strong", {}, words), ` · ${percent}% of all rounds · ${experiment.n_settings} settings · ${experiment.folder}`),
    el("div", { class: "bar", role: "progressbar", "aria-valuenow": percent, "aria-label": `${experiment.name}: ${words}` }, parts),
  ];
}

/** A scrollable table. rows: lists of cells, the first of which heads the row. */
function table(label, heads, rows) {
  const head = el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text))));
  const body = rows.map(([first, ...cells]) => el("tr", {}, el("th", { scope: "row" }, first), cells.map((cell) => el("td", {}, cell))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, el("table", {}, head, el("tbody", {}, body)));
}

/** The table of settings. toggle: called with a setting's name and whether to draw it. */
function settingsTable(experiment, settings, isDrawn, toggle) {
  const rows = settings.map((s) => {
    const at = s.at ? `${[...new Set(s.at)].join("..")} / ${s.rounds ?? "?"}` : `${s.rounds ?? "?"}`;
    const box = el("input", { type: "checkbox", id: `row-${experiment.key}-${s.name}`, on: { change: (event) => toggle(s.name, event.target.checked) } });
    box.checked = isDrawn(s);
    const metric = s.hidden && (s.at || s.counts.done) ? "private" : s.final ? withError(s.final) : s.so_far ? `(${withError(s.so_far)})` : "–";
    const agents = Object.entries(s.spread).map(([percent, value]) => `${percent}% ${digits(value)}`).join(", ");
    const cell = el("span", { title: s.hidden }, metric, agents && [el("br"), el("small", {}, `agents: ${agents}`)]);
    return [el("label", {}, box, swatch(experiment, s.name), s.label), s.seeds, countsInWords(s.counts, s.trials), at, cell, epsilonInWords(s.epsilon)];
  });
  const metrics = new Set(settings.map((s) => s.metric).filter(Boolean));
  const metric = metrics.size === 1 ? [...metrics][0].replaceAll("_", " ") : "metric";
  const left = experiment.n_settings - settings.length;
  const notes = [
    "Mean of the finished seeds ± standard error; in brackets: of all begun seeds, so far.", "ε: the largest over the seeds of a setting.",
    ...notesOf(experiment, settings).map((note) => `${note}.`),
    settings.some((s) => s.epsilon?.real) && "Each seed of a real release has its own ledger: on the same data, their privacy losses add up.",
    settings.some((s) => Object.keys(s.spread).length) && "Agents: quantiles over the agents of a run, averaged over the finished seeds.",
    left > 0 && `${left} more settings are not listed: running ones come first, then the best; search for others by name.`,
  ];
  return [
    table("settings", ["setting (drawn if checked)", "seeds", "trials", "round", `${metric} ± SE`, "ε spent"], rows),
    el("p", { class: "notes" }, notes.filter(Boolean).join(" ")),
  ];
}

/** The lists of failed trials and unreadable files. */
function troubles(experiment) {
  const list = (title, entries, n) => n > 0 && [
    el("h3", {}, `${title} (${n})`),
    el("ul", {}, entries.map((f) => el("li", {}, el("b", {}, f.label), f.seed !== null && `, seed ${f.seed}`, `: ${f.words}`))),
    n > entries.length && el("p", { class: "notes" }, `and ${n - entries.length} more`),
  ];
  return [list("Failed trials", experiment.failed, experiment.n_failed), list("Unreadable files", experiment.faults, experiment.n_faults)].flat();
}

/** The table of the best configurations of one setting. */
function bestTable(found) {
  const rows = found.rows.map((row) => found.columns.map((name) => String(row[name] ?? "")));
  return [found.words && el("p", { class: "notes" }, found.words), rows.length > 0 && table("best configurations", found.columns, rows)];
}

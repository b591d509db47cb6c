// The charts of one panel: settings of one problem and one metric.

const DECADE = 10; // ratio of the largest to the smallest value from which an axis is logarithmic

function transparent(colour, alpha) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}

/** True if all values are above 0 and span a decade. */
function spansDecade(values) {
  return values.length > 0 && Math.min(...values) > 0 && Math.max(...values) >= DECADE * Math.min(...values);
}

function present(values) {
  return values.filter((value) => value !== null && value !== undefined);
}

function axis(title, log, more = {}) {
  const grid = DARK.matches ? "#3a4048" : "#e3e6ea";
  const ticks = log ? { type: "log", dtick: "D2", tickformat: "~g", minor: { showgrid: false } } : { type: "linear" };
  return { title: { text: title, standoff: 8 }, gridcolor: grid, zeroline: false, linecolor: grid, automargin: true, ...ticks, ...more };
}

function layout(xaxis, yaxis) {
  return {
    xaxis, yaxis, uirevision: "kept", showlegend: false, hovermode: "closest", margin: { l: 62, r: 14, t: 30, b: 56 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: DARK.matches ? "#8b949e" : "#8c959f", activecolor: DARK.matches ? "#e6eaef" : "#24292f" },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
    font: { family: "system-ui, sans-serif", size: 12.5, color: DARK.matches ? "#d8dde3" : "#24292f" },
    hoverlabel: { align: "left" },
  };
}

/** Line and band of one setting against `x`, with the mean and its error at each point. */
function lineAndBand(experiment, setting, x, floor, unit) {
  const { colour, dash } = look(experiment.key, setting.name);
  const { round, mean, se, n, epsilon } = setting.curve;
  const known = round.map((_, k) => k).filter((k) => mean[k] !== null && x[k] !== null && x[k] !== undefined);
  const words = known.map((k) => {
    const error = se[k] === null ? "" : ` ± ${digits(se[k], 2)}`;
    const spent = epsilon[k] === null ? "" : `<br>ε spent before: ${digits(epsilon[k])}`;
    const seeds = `${n[k] === setting.trials ? "all " : ""}${n[k]}${n[k] === setting.trials ? "" : ` of ${setting.trials}`} seeds`;
    return `<b>${plain(setting.label)}</b><br>round ${round[k]}: ${digits(mean[k], 4)}${error}<br>mean of ${seeds}${spent}`;
  });
  const few = known.length <= 2 || unit === "epsilon";
  const line = {
    x: known.map((k) => x[k]), y: known.map((k) => mean[k]), name: plain(setting.label), text: words, hoverinfo: "text",
    mode: few ? "lines+markers" : "lines", line: { color: colour, dash, width: 2 }, marker: { size: few ? 4 : 6, color: colour },
  };
  const wide = known.filter((k) => se[k] !== null);
  const low = wide.map((k) => Math.max(mean[k] - se[k], floor)), high = wide.map((k) => mean[k] + se[k]);
  const band = {
    x: [...wide.map((k) => x[k]), ...wide.map((k) => x[k]).reverse()], y: [...low, ...high.reverse()], fill: "toself",
    fillcolor: transparent(colour, 0.16), line: { width: 0 }, mode: "lines", hoverinfo: "skip", name: "± 1 standard error",
  };
  return wide.length > 1 ? [band, line] : [line];
}

/** The axis of rounds; few of them have a tick each. */
function roundAxis(settings) {
  const last = Math.max(...settings.map((s) => s.curve.round.at(-1)));
  return axis("round", false, last <= 12 ? { dtick: 1 } : {});
}

/** The range of the metric: whether its axis is logarithmic, and the lowest value that a band may reach there. */
function metricRange(panel, settings) {
  const means = settings.flatMap((s) => present(s.curve?.mean || []));
  const log = panel.lower_is_better && spansDecade(means);
  return { log, floor: log ? Math.min(...means) / 3 : -Infinity };
}

function byRound(experiment, panel, settings) {
  const drawn = settings.filter((s) => s.curve?.mean);
  if (!drawn.length) return null;
  const { log, floor } = metricRange(panel, drawn);
  const traces = drawn.flatMap((s) => lineAndBand(experiment, s, s.curve.round, floor, "round"));
  return { title: `${panel.metric} by round`, traces, layout: layout(roundAxis(drawn), axis(panel.metric, log)) };
}

/** Settings that spend a finite epsilon above 0. */
function spending(settings) {
  return settings.filter((s) => s.epsilon && !s.epsilon.claim && s.epsilon.spent > 0);
}

/** The words for the accountants of some settings. */
function notesOf(experiment, settings) {
  return [...new Set(settings.map((s) => s.epsilon?.note).filter((note) => note !== null && note !== undefined))]
    .map((note) => noteInWords(experiment.notes[note]));
}

function byEpsilon(experiment, panel, settings) {
  const drawn = spending(settings).filter((s) => s.curve?.mean && present(s.curve.epsilon).some((e) => e > 0));
  if (!drawn.length) return null;
  const { log, floor } = metricRange(panel, drawn);
  const positive = drawn.flatMap((s) => present(s.curve.epsilon).filter((e) => e > 0));
  const logX = spansDecade(positive);
  const traces = drawn.flatMap((s) => {
    const x = s.curve.epsilon.map((e) => (logX && e === 0 ? null : e));
    return lineAndBand(experiment, s, x, floor, "epsilon");
  });
  const notes = [...notesOf(experiment, drawn), ...(logX ? ["rounds before the first release, at ε = 0, are left of the axis"] : [])];
  const left = settings.filter((s) => s.curve?.mean && !drawn.includes(s)).map((s) => s.label);
  if (left.length) notes.push(`without an epsilon above 0, not drawn: ${some(left)}`);
  return { title: `${panel.metric} by epsilon spent`, notes, traces, layout: layout(axis("ε spent before the round", logX), axis(panel.metric, log)) };
}

const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "x"];

/**
 * One trace of the frontier: a point with its error at its own epsilon; of a setting that shares nothing, a level line.
 * Points that cover each other are told apart by symbol and by the width of their bars.
 */
function frontierTrace(experiment, setting, ends, order) {
  const { colour, dash } = look(experiment.key, setting.name);
  const { mean, se, n } = setting.final, level = setting.epsilon.spent === 0;
  const words = `<b>${plain(setting.label)}</b><br>final: ${withError(setting.final)}, mean of ${n} ${n === 1 ? "seed" : "seeds"}<br>ε = ${digits(setting.epsilon.spent)}${setting.epsilon.nothing ? ": nothing is released" : ""}`;
  const error = { type: "data", array: [se || 0], visible: se !== null, color: colour, thickness: 1.5, width: 4 + 2 * (order % 4) };
  return {
    x: level ? ends : [setting.epsilon.spent], y: level ? ends.map(() => mean) : [mean], text: level ? ends.map(() => words) : [words],
    hoverinfo: "text", mode: level ? "lines" : "markers", name: plain(setting.label),
    line: { color: colour, dash: dash === "solid" ? "dot" : dash, width: 1.5 }, marker: { size: 10, color: colour, symbol: SYMBOLS[order % SYMBOLS.length], opacity: 0.85 }, error_y: level ? undefined : error,
  };
}

function frontier(experiment, panel, settings, others) {
  const ready = settings.filter((s) => s.final && s.epsilon && !s.epsilon.claim && s.epsilon.spent !== null);
  const points = ready.filter((s) => s.epsilon.spent > 0);
  if (!points.length) return null;
  const grey = others.filter((s) => s.final && s.epsilon && s.epsilon.spent > 0 && !s.epsilon.claim);
  const x = [...points, ...grey].map((s) => s.epsilon.spent), y = [...ready, ...grey].map((s) => s.final.mean);
  const logX = Math.min(...x) * 3 < Math.max(...x), ends = [Math.min(...x) / 1.25, Math.max(...x) * 1.25];
  const traces = ready.map((s, k) => frontierTrace(experiment, s, ends, k));
  if (grey.length) {
    traces.unshift({
      x: grey.map((s) => s.epsilon.spent), y: grey.map((s) => s.final.mean), text: grey.map((s) => `${plain(s.label)}<br>${withError(s.final)}`),
      mode: "markers", hoverinfo: "text", marker: { size: 5, color: "rgba(128,128,128,.5)" }, name: "not drawn above",
    });
  }
  const notes = ["final metric over the finished seeds ± standard error", ...notesOf(experiment, points)];
  if (grey.length) notes.push("grey: settings that are not drawn elsewhere");
  const level = ready.filter((s) => s.epsilon.spent === 0);
  const nothing = level.filter((s) => s.epsilon.nothing).map((s) => s.label), free = level.filter((s) => !s.epsilon.nothing).map((s) => s.label);
  if (nothing.length) notes.push(`level line: nothing released, ε = 0 (${some(nothing)})`);
  if (free.length) notes.push(`level line: ε = 0 (${some(free)})`);
  const none = settings.filter((s) => s.final && s.epsilon && (s.epsilon.spent === null || s.epsilon.claim)).map((s) => s.label);
  if (none.length) notes.push(`no finite epsilon, not drawn: ${some(none)}`);
  return { title: "frontier", notes, traces, layout: layout(axis("final ε", logX), axis(panel.metric, panel.lower_is_better && spansDecade(y))) };
}

function epsilonByRound(experiment, panel, settings) {
  const drawn = spending(settings).filter((s) => s.curve && present(s.curve.epsilon).some((e) => e > 0));
  if (!drawn.length) return null;
  const traces = drawn.map((s) => {
    const { colour, dash } = look(experiment.key, s.name);
    const words = s.curve.round.map((t, k) => `<b>${plain(s.label)}</b><br>before round ${t}: ε = ${digits(s.curve.epsilon[k])}`);
    return { x: s.curve.round, y: s.curve.epsilon, text: words, hoverinfo: "text", mode: "lines", connectgaps: true, line: { color: colour, dash, width: 2, shape: "hv" }, name: plain(s.label) };
  });
  return { title: "epsilon spent by round", notes: notesOf(experiment, drawn), traces, layout: layout(roundAxis(drawn), axis("ε spent before the round", false, { rangemode: "tozero" })) };
}

const CHARTS = { byRound, byEpsilon, frontier, epsilonByRound };
const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => target.data && target.offsetWidth && Plotly.Plots.resize(target)));
const drawnCharts = new WeakMap(); // by element: what it shows, so that nothing is drawn twice

/** Draw a chart into its figure, or leave it; a zoom stays, since `uirevision` does. */
function draw(figure, chart, label) {
  figure.hidden = chart === null;
  if (chart === null) return;
  const now = JSON.stringify([chart, DARK.matches]);
  if (drawnCharts.get(figure) === now) return;
  drawnCharts.set(figure, now);
  const [caption, plot, notes] = figure.children;
  caption.textContent = chart.title;
  notes.replaceChildren(...(chart.notes || []).map((note) => el("span", {}, note)));
  plot.setAttribute("aria-label", `${chart.title}, ${label}; its final numbers are in the table of settings`);
  const config = { displaylogo: false, displayModeBar: true, modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]] };
  Plotly.react(plot, chart.traces, chart.layout, config);
  resized.observe(plot);
}

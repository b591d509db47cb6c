// The charts of one panel, which shows the settings of one problem and one metric.

const CHARTS = {
  byRound: (...given) => lineChart(...given, { title: (metric) => `${metric} by round`, x: "round", y: "mean" }),
  byEpsilon: (...given) => lineChart(...given, { title: (metric) => `${metric} by epsilon spent`, x: "epsilon", y: "mean" }),
  frontier,
  epsilonByRound: (...given) => lineChart(...given, { title: () => "epsilon spent by round", x: "round", y: "epsilon" }),
};
const CLEAR = "rgba(0,0,0,0)";
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "x"];

/** True if all values are above 0 and the largest is at least `ratio` times the smallest. */
function spans(values, ratio = 10) {
  return values.length > 0 && Math.min(...values) > 0 && Math.max(...values) >= ratio * Math.min(...values);
}

function axis(title, log, more = {}) {
  const ticks = log ? { type: "log", dtick: "D2", tickformat: "~g" } : { type: "linear" };
  return { title: { text: title, standoff: 8 }, gridcolor: "#e3e6ea", zeroline: false, automargin: true, ...ticks, ...more };
}

function layout(xaxis, yaxis) {
  const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls the page
  return {
    xaxis, yaxis, dragmode, uirevision: "kept", showlegend: false, hovermode: "closest", margin: { l: 62, r: 14, t: 30, b: 56 },
    font: { family: "system-ui, sans-serif", size: 12.5 }, hoverlabel: { align: "left" },
    paper_bgcolor: CLEAR, plot_bgcolor: CLEAR, modebar: { bgcolor: CLEAR, color: "#8c959f", activecolor: "#24292f" },
  };
}

/** The settings that spend a finite epsilon above 0. */
function spending(settings) {
  return settings.filter((s) => s.epsilon && !s.epsilon.claim && s.epsilon.spent > 0);
}

/** The notes on accountant, delta and relation of some settings. */
function notesOf(experiment, settings) {
  const known = settings.map((s) => s.epsilon?.note).filter((note) => note !== null && note !== undefined);
  return [...new Set(known)].map((note) => experiment.notes[note]);
}

/** A chart with a line for each setting or, if an axis shows epsilon, for each setting that spends epsilon. x, y: columns of the curves. */
function lineChart(experiment, panel, settings, { title, x, y }) {
  const ofEpsilon = x === "epsilon" || y === "epsilon";
  const drawn = (ofEpsilon ? spending(settings) : settings).filter((s) => s.curve?.[y] && (!ofEpsilon || s.curve.epsilon.some((e) => e > 0)));
  if (!drawn.length) return null;
  const all = (name) => drawn.flatMap((s) => s.curve[name]).filter((value) => value !== null);
  const logX = x === "epsilon" && spans(all(x).filter((e) => e > 0)), logY = y === "mean" && panel.lower_is_better && spans(all(y));
  const floor = logY ? Math.min(...all(y)) / 3 : -Infinity; // lowest value of a band
  const traces = drawn.flatMap((s) => lineAndBand(experiment, s, x, y, logX, floor));
  const names = { round: "round", epsilon: "ε spent before the round", mean: panel.metric };
  const left = x === "epsilon" ? settings.filter((s) => s.curve?.mean && !drawn.includes(s)).map((s) => s.label) : [];
  const notes = [
    ...(ofEpsilon ? notesOf(experiment, drawn) : []), logX && "rounds before the first release, at ε = 0, are not shown on the logarithmic axis",
    left.length && `without an epsilon above 0, not drawn: ${some(left)}`,
  ];
  const ticks = x === "round" && Math.max(...all(x)) <= 12 ? { dtick: 1 } : {};
  return { title: title(panel.metric), notes, traces, layout: layout(axis(names[x], logX, ticks), axis(names[y], logY)) };
}

/** The line of one setting, and a band of ± one standard error. */
function lineAndBand(experiment, setting, x, y, logX, floor) {
  const { colour, dash } = look(experiment, setting.name), curve = setting.curve;
  const at = curve.round.map((_, k) => k).filter((k) => curve[y][k] !== null && curve[x][k] !== null && !(logX && curve[x][k] === 0));
  const words = at.map((k) => {
    const mean = curve.mean ? `: ${withError({ mean: curve.mean[k] ?? 0, se: curve.se[k] })}<br>mean of ${curve.n[k]} of ${setting.trials} seeds` : "";
    return `<b>${plain(setting.label)}</b><br>round ${curve.round[k]}${mean}<br>ε spent before: ${digits(curve.epsilon[k])}`;
  });
  const pick = (name, k) => curve[name][k];
  const line = {
    x: at.map((k) => pick(x, k)), y: at.map((k) => pick(y, k)), text: words, hoverinfo: "text", name: plain(setting.label),
    mode: at.length <= 2 || x === "epsilon" ? "lines+markers" : "lines", marker: { size: 4 }, line: { color: colour, dash, width: 2, shape: y === "epsilon" ? "hv" : "linear" },
  };
  const wide = y === "mean" ? at.filter((k) => curve.se[k] !== null) : [];
  if (wide.length < 2) return [line];
  const low = wide.map((k) => Math.max(curve.mean[k] - curve.se[k], floor)), high = wide.map((k) => curve.mean[k] + curve.se[k]);
  const there = wide.map((k) => pick(x, k));
  const band = {
    x: [...there, ...there.toReversed()], y: [...low, ...high.reverse()], fill: "toself", fillcolor: `${colour}29`,
    line: { width: 0 }, mode: "lines", hoverinfo: "skip", name: "± 1 standard error",
  };
  return [band, line];
}

/** A chart of final metric against final epsilon: points with errors, and level lines for ε = 0; symbols distinguish overlapping points. */
function frontier(experiment, panel, settings) {
  const ready = settings.filter((s) => s.final && s.epsilon && !s.epsilon.claim && s.epsilon.spent !== null);
  const points = spending(ready), level = ready.filter((s) => s.epsilon.spent === 0);
  if (!points.length) return null;
  const x = points.map((s) => s.epsilon.spent), ends = [Math.min(...x) / 1.25, Math.max(...x) * 1.25];
  const traces = ready.map((s, k) => {
    const { colour, dash } = look(experiment, s.name), { mean, se, n } = s.final;
    const text = `<b>${plain(s.label)}</b><br>final: ${withError(s.final)}, mean of ${n} seeds<br>ε = ${epsilonInWords(s.epsilon)}`;
    const common = { text, hoverinfo: "text", name: plain(s.label) };
    if (level.includes(s)) return { ...common, x: ends, y: [mean, mean], mode: "lines", line: { color: colour, dash: dash === "solid" ? "dot" : dash } };
    const marker = { size: 10, color: colour, symbol: SYMBOLS[k % SYMBOLS.length] };
    return { ...common, x: [s.epsilon.spent], y: [mean], mode: "markers", marker, error_y: { array: [se || 0], visible: se !== null, color: colour } };
  });
  const none = settings.filter((s) => s.final && s.epsilon && !ready.includes(s));
  const notes = [
    "final metric over the finished seeds ± standard error", ...notesOf(experiment, points),
    level.length && `level line: ε = 0 (${some(level.map((s) => s.label))})`,
    none.length && `no finite epsilon, not drawn: ${some(none.map((s) => s.label))}`,
  ];
  const log = panel.lower_is_better && spans(ready.map((s) => s.final.mean));
  return { title: "frontier", notes, traces, layout: layout(axis("final ε", spans(x, 3)), axis(panel.metric, log)) };
}

const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => target.data && target.offsetWidth && Plotly.Plots.resize(target)));

/** Draw a chart into its figure if it has changed; `uirevision` keeps the zoom. */
function draw(figure, chart, label) {
  figure.hidden = chart === null;
  const now = JSON.stringify(chart);
  if (chart === null || figure.now === now) return;
  figure.now = now;
  const [caption, plot, notes] = figure.children;
  caption.textContent = chart.title;
  notes.replaceChildren(...chart.notes.filter(Boolean).map((note) => el("span", {}, note)));
  plot.setAttribute("aria-label", `${chart.title}, ${label}; its final numbers are in the table of settings`);
  const config = { displaylogo: false, displayModeBar: true, modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]] };
  Plotly.react(plot, chart.traces, chart.layout, config);
  resized.observe(plot);
}

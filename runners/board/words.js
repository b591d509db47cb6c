"use strict";
// Elements, numbers and words that the other scripts share.

/** An element with attributes and children; text is never read as HTML. */
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A number with so many digits; a dash where there is none. */
function digits(value, n = 3) {
  return value === null || value === undefined ? "–" : String(Number(value.toPrecision(n)));
}

/** `0.123 ± 0.004`, both with the decimals of the error. */
function withError(found) {
  if (!found) return "–";
  if (found.se === null || found.se === 0) return digits(found.mean, 4);
  const decimals = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(found.se))));
  return `${found.mean.toFixed(decimals)} ± ${found.se.toFixed(decimals)}`;
}

function epsilonInWords(epsilon) {
  if (!epsilon) return "–";
  if (epsilon.claim) return "none (a claim is no guarantee)";
  if (epsilon.none) return "none";
  return digits(epsilon.spent) + (epsilon.so_far ? " so far" : "");
}

/** `3 of 5 done, 1 running`. */
function countsInWords(counts, total) {
  const others = Object.entries(counts).filter(([phase]) => phase !== "done");
  return [`${counts.done || 0} of ${total} done`, ...others.map(([phase, n]) => `${n} ${phase}`)].join(", ");
}

/** A few names, and how many more there are. */
function some(names) {
  return names.length <= 5 ? names.join(", ") : `${names.slice(0, 4).join(", ")} and ${names.length - 4} more`;
}

/** The words for an accountant, a delta and a relation. */
function noteInWords(note) {
  return `ε by ${note.accountant} at ${note.delta}, ${note.relation}`;
}

function ago(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 129600 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

/** Text for plotly, which would read some tags. */
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const DARK = matchMedia("(prefers-color-scheme: dark)");
const PALETTE = {
  light: ["#0072b2", "#d55e00", "#009e73", "#b8589a", "#8a6d00", "#3d9bd1", "#6a51a3", "#5b5b5b"],
  dark: ["#5ab4f0", "#ff8c42", "#3ecfa0", "#e89ac7", "#e5c84b", "#9ad4f5", "#b39ddb", "#c0c0c0"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const slots = new Map(); // by experiment: the place of each setting in the order of colours

/** The colour and dash of a setting, the same in every chart and after every update. */
function look(experiment, name) {
  if (!slots.has(experiment)) slots.set(experiment, new Map());
  const own = slots.get(experiment);
  if (!own.has(name)) own.set(name, own.size);
  const slot = own.get(name), colours = PALETTE[DARK.matches ? "dark" : "light"];
  return { colour: colours[slot % colours.length], dash: DASHES[Math.floor(slot / colours.length) % DASHES.length] };
}

/** A line in the look of a setting. */
function swatch(experiment, name) {
  const { colour, dash } = look(experiment, name);
  const lengths = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4" };
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [key, value] of Object.entries({ width: 26, height: 10, "aria-hidden": "true", class: "swatch" })) svg.setAttribute(key, value);
  for (const [key, value] of Object.entries({ x1: 1, x2: 25, y1: 5, y2: 5, stroke: colour, "stroke-width": 3, "stroke-dasharray": lengths[dash] })) line.setAttribute(key, value);
  svg.append(line);
  return svg;
}

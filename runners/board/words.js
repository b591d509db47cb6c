"use strict";
// Functions for elements, numbers and words, which the other scripts share.

/** Make an element with attributes and children; text is never parsed as HTML. */
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child || child === 0));
  return element;
}

/** Format a number with n significant digits; a dash if it is missing. */
function digits(value, n = 3) {
  return value === null || value === undefined ? "–" : String(Number(value.toPrecision(n)));
}

/** Format mean and standard error as `0.1234 ± 0.0045`, with two digits of the error. */
function withError(found) {
  if (!found) return "–";
  if (!found.se) return digits(found.mean, 4);
  const decimals = Math.min(8, Math.max(0, 1 - Math.floor(Math.log10(found.se))));
  return `${found.mean.toFixed(decimals)} ± ${found.se.toFixed(decimals)}`;
}

/** Describe the spent epsilon and its limits. */
function epsilonInWords(epsilon) {
  if (!epsilon) return "–";
  if (epsilon.claim) return "none (a claim is no guarantee)";
  if (epsilon.none) return "none";
  const budget = epsilon.budget !== null && ` of budget ${digits(epsilon.budget)}${epsilon.budget_delta ? ` at ${epsilon.budget_delta}` : ""}`;
  const target = epsilon.target !== null && ` of target ${digits(epsilon.target)}`;
  const above = epsilon.spent > (epsilon.budget ?? epsilon.target ?? Infinity) * (1 + 1e-9) && "above its limit";
  const words = [budget, target].filter(Boolean).join(" and");
  return [`${digits(epsilon.spent)}${words}`, epsilon.nothing && "nothing is released", epsilon.so_far && "so far", above].filter(Boolean).join(", ");
}

/** Describe counts by phase, as in `3 of 5 done, 1 running`. */
function countsInWords(counts, total) {
  const others = Object.entries(counts).filter(([phase]) => phase !== "done");
  return [`${counts.done || 0} of ${total} done`, ...others.map(([phase, n]) => `${n} ${phase}`)].join(", ");
}

/** Join a few names, and say how many more there are. */
function some(names) {
  return names.length <= 5 ? names.join(", ") : `${names.slice(0, 4).join(", ")} and ${names.length - 4} more`;
}

/** Escape text for plotly, which would interpret some tags. */
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#b8589a", "#8a6d00", "#3d9bd1", "#6a51a3", "#5b5b5b", "#c2185b", "#4e7a1e"];
const DASHES = [["solid", "solid"], ["dash", "dashed"], ["dot", "dotted"], ["dashdot", "double"]]; // names in plotly and in CSS
const places = new Map(); // by KEY/SETTING: index of its look

/** The colour and dash of a setting, the same in every chart and after every update. */
function look(experiment, name) {
  const key = `${experiment.key}/${name}`;
  if (!places.has(key)) places.set(key, [...places.keys()].filter((other) => other.startsWith(`${experiment.key}/`)).length);
  const [dash, css] = DASHES[Math.floor(places.get(key) / COLOURS.length) % DASHES.length];
  return { colour: COLOURS[places.get(key) % COLOURS.length], dash, css };
}

/** Make a short line in the look of a setting, for legends. */
function swatch(experiment, name) {
  const { colour, css } = look(experiment, name);
  return el("span", { class: "swatch", style: `border-top: 4px ${css} ${colour}`, "aria-hidden": "true" });
}

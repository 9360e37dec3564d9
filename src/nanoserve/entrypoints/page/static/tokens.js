// A text token by token: the less likely a token was, the stronger its colour; its alternatives show on hover and on focus.

import { build } from "./dom.js";

const STEPS = [0.9, 0.6, 0.3, 0.1];
const NAMES = new Map([["\n", "line break"], [" ", "space"], ["\t", "tab"], ["", "nothing"], ["\ufffd", "part of a character"]]);
let card = null;
let anchor = null;

/** A list of tokens that grows; one tab stop, arrow keys move inside it. */
export class TokenList {
  constructor(label) {
    this.tokens = [];
    this.element = build("div", {
      class: "tokens", role: "listbox", "aria-label": label, "aria-orientation": "horizontal", onkeydown: (event) => this.move(event),
      onfocusin: (event) => this.show(event.target), onfocusout: hideCard,
      onmouseover: (event) => this.show(event.target), onmouseout: (event) => leaveToken(event), onclick: (event) => this.show(event.target),
    });
  }

  /** @param {import("./generation.js").ScoredText[]} scored */
  add(scored) {
    const spans = scored.map((each) => {
      this.tokens.push(each);
      const position = this.tokens.length;
      return build("span", {
        class: `token s${surprise(each.logprob)}`, role: "option", "aria-selected": "false", tabindex: position === 1 ? 0 : -1,
        "aria-label": `${spoken(each.text)}, ${percent(each.logprob)}`, "data-place": position - 1,
      }, shownText(each.text));
    });
    this.element.append(...spans);
  }

  move(event) {
    const here = Number(event.target.dataset.place);
    const last = this.tokens.length - 1;
    const next = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") hideCard();
    if (next === undefined || Number.isNaN(here)) return;
    event.preventDefault();
    const target = this.element.children[Math.min(Math.max(next, 0), last)];
    event.target.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }

  show(target) {
    const place = target.dataset?.place;
    if (place === undefined) return;
    showCard(target, this.tokens[Number(place)]);
  }
}

/** What the colours say, for those who see them and those who do not. */
export function surpriseLegend() {
  const bounds = ["90 % and more", "60 %", "30 %", "10 %", "less"];
  const parts = bounds.map((text, step) => build("li", {}, build("span", { class: `token s${step}` }, text)));
  return build("ul", { class: "legend", "aria-label": "How likely each token was" }, ...parts);
}

function surprise(logprob) {
  if (logprob === null) return 0;
  const probability = Math.exp(logprob);
  const step = STEPS.findIndex((bound) => probability >= bound);
  return step < 0 ? STEPS.length : step;
}

function percent(logprob) {
  if (logprob === null) return "nothing precedes it";
  const value = 100 * Math.exp(logprob);
  if (value > 99.95) return "100 %";
  return value < 0.01 ? "< 0.01 %" : `${value.toFixed(value < 1 ? 2 : 1)} %`;
}

function spoken(text) {
  return NAMES.get(text) ?? text.replaceAll("\n", " line break ");
}

/** Line breaks stay, and can be seen; so can a token of nothing. */
function shownText(text) {
  return text === "" ? "\u2205" : text.replaceAll("\n", "\u21b5\n").replaceAll("\t", "\u21e5\t");
}

/** In the card every space counts. */
function exactText(text) {
  return text === "" ? "\u2205" : text.replaceAll(" ", "\u2423").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5");
}

function showCard(target, scored) {
  card ??= document.getElementById("main").appendChild(build("div", { id: "token-card", role: "tooltip", hidden: true, onmouseleave: hideCard }));
  const others = scored.top.some((each) => each.text === scored.text) ? scored.top : [...scored.top, scored];
  const rows = (others.length === 0 ? [scored] : others).map((each) => alternative(each, each.text === scored.text));
  card.replaceChildren(build("p", {}, build("b", {}, exactText(scored.text)), ` ${percent(scored.logprob)}`), build("ol", {}, ...rows));
  card.hidden = false;
  document.querySelector("[aria-describedby=token-card]")?.removeAttribute("aria-describedby");
  target.setAttribute("aria-describedby", "token-card");
  anchor = target;
  placeCard();
}

function alternative({ text, logprob }, isChosen) {
  const bar = build("span", { class: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--share", logprob === null ? 0 : Math.exp(logprob));
  const name = build("span", { class: "name" }, exactText(text), isChosen ? build("span", { class: "chosen" }, " chosen") : null);
  return build("li", { class: isChosen ? "is-chosen" : null }, name, bar, build("span", { class: "share" }, percent(logprob)));
}

function placeCard() {
  if (card === null || card.hidden) return;
  const token = anchor.getClientRects()[0];
  if (token === undefined || token.bottom < 0 || token.top > window.innerHeight) {
    hideCard();
    return;
  }
  const size = card.getBoundingClientRect();
  const left = Math.max(8, Math.min(token.left, window.innerWidth - size.width - 8));
  const below = token.bottom + 4;
  const fits = below + size.height < window.innerHeight;
  card.style.left = `${left}px`;
  card.style.top = `${fits ? below : Math.max(8, token.top - size.height - 4)}px`;
}

function leaveToken(event) {
  if (event.relatedTarget !== card && !card?.contains(event.relatedTarget)) hideCard();
}

function hideCard() {
  if (card !== null) card.hidden = true;
}

window.addEventListener("scroll", placeCard, { passive: true });
window.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideCard();
});

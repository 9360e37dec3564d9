// Whether a value fits a JSON schema: the first place where it does not, and the keywords that are not looked at here.

import { expression } from "./schema_shape.js";

const NOTES = new Set(["title", "description", "default", "examples", "$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "then", "else"]);
const DEEPEST = 256;
const MOST = 50_000; // checks of one value: a schema can make them many
const REST = "what is too deep or too much";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * @param {unknown} value
 * @param {unknown} schema whose shape is right
 * @returns {{fault: string | null, unchecked: string[]}} `fault` says where and why it does not fit
 */
export function checkValue(value, schema) {
  const check = new Check(schema);
  return { fault: check.fault(value, schema, "", 0), unchecked: [...check.unchecked].sort() };
}

class Check {
  constructor(root) {
    this.root = root;
    this.count = 0;
    this.unchecked = new Set();
  }

  fault(value, schema, path, depth) {
    if (schema === true) return null;
    if (schema === false) return said(path, "may not be there");
    this.count += 1;
    if (depth > DEEPEST || this.count > MOST) {
      this.unchecked.add(REST);
      return null;
    }
    for (const [keyword, wanted] of Object.entries(schema)) {
      const check = Object.hasOwn(CHECKS, keyword) ? CHECKS[keyword] : null;
      if (check === null && !NOTES.has(keyword)) this.unchecked.add(keyword);
      const fault = check?.({
        value, wanted, schema, path,
        fits: (inner, own = value) => this.fault(own, inner, path, depth + 1) === null,
        inside: (own, inner, name) => this.fault(own, inner, path + name, depth + 1),
        referred: (reference) => this.referred(reference),
      });
      if (fault) return fault;
    }
    return null;
  }

  /** The schema that a reference within the whole names; any value fits one that is elsewhere. */
  referred(reference) {
    const found = resolve(this.root, reference);
    if (found === undefined) this.unchecked.add("$ref");
    return found ?? true;
  }
}

function said(path, message) {
  return `${path === "" ? "the whole" : path.replace(/^\./, "")} ${message}`;
}

function typeOf(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return Number.isInteger(value) ? "integer" : typeof value;
}

/** The same text for equal values, in whatever order their members are. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

/** A check of values of one type; others pass. */
function only(isOne, isGood, message) {
  return ({ value, wanted, path }) => (isOne(value) && !isGood(value, wanted) ? said(path, message(wanted)) : null);
}

/** The first fault of several parts. */
function firstOf(parts, fault) {
  for (const each of parts) {
    const problem = fault(each);
    if (problem) return problem;
  }
  return null;
}

const isNumber = (value) => typeof value === "number";
const isText = (value) => typeof value === "string";
const length = (value) => [...value].length;
const members = ({ value, wanted, inside }) => isObject(value) && firstOf(Object.keys(wanted).filter((name) => Object.hasOwn(value, name)), (name) => inside(value[name], wanted[name], `.${name}`));

/** The elements behind those that have a schema each. */
function rest({ value, wanted, schema, inside }, already) {
  return Array.isArray(value) ? firstOf([...value.entries()].slice(already(schema)), ([place, each]) => inside(each, wanted, `[${place}]`)) : null;
}

function each({ value, wanted, inside }) {
  return Array.isArray(value) ? firstOf([...value.entries()].slice(0, wanted.length), ([place, one]) => inside(one, wanted[place], `[${place}]`)) : null;
}

function others({ value, wanted, schema, path, inside }) {
  if (!isObject(value)) return null;
  const patterns = Object.keys(schema.patternProperties ?? {}).map((pattern) => expression(pattern));
  const unknown = Object.keys(value).filter((name) => !Object.hasOwn(schema.properties ?? {}, name) && !patterns.some((pattern) => pattern.test(name)));
  if (wanted === false && unknown.length > 0) return said(path, `has ${JSON.stringify(unknown[0])}, which the schema does not have`);
  return firstOf(unknown, (name) => inside(value[name], wanted, `.${name}`));
}

function resolve(root, reference) {
  if (!/^#(\/|$)/.test(reference)) return undefined;
  const names = reference.slice(1).split("/").slice(1).map((name) => decodeURIComponent(name).replaceAll("~1", "/").replaceAll("~0", "~"));
  return names.reduce((found, name) => (typeof found === "object" && found !== null && Object.hasOwn(found, name) ? found[name] : undefined), root);
}

/** By keyword: what is wrong, or nothing. */
const CHECKS = {
  type: ({ value, wanted, path }) => {
    const is = typeOf(value);
    const isGood = [wanted].flat().some((each) => each === is || (each === "number" && is === "integer"));
    return isGood ? null : said(path, `must be ${[wanted].flat().join(" or ")}, is ${is}`);
  },
  enum: ({ value, wanted, path }) => (wanted.some((each) => canonical(each) === canonical(value)) ? null : said(path, `must be one of ${wanted.map((each) => JSON.stringify(each)).join(", ")}, is ${JSON.stringify(value)}`)),
  const: ({ value, wanted, path }) => (canonical(wanted) === canonical(value) ? null : said(path, `must be ${JSON.stringify(wanted)}`)),
  required: ({ value, wanted, path }) => {
    const missing = isObject(value) && wanted.find((name) => !Object.hasOwn(value, name));
    return missing ? said(path, `needs ${JSON.stringify(missing)}`) : null;
  },
  properties: members,
  patternProperties: ({ value, wanted, inside }) => isObject(value) && firstOf(Object.entries(wanted), ([pattern, schema]) => firstOf(Object.keys(value).filter((name) => expression(pattern).test(name)), (name) => inside(value[name], schema, `.${name}`))),
  additionalProperties: others,
  propertyNames: ({ value, wanted, path, fits }) => (isObject(value) && Object.keys(value).some((name) => !fits(wanted, name)) ? said(path, "has a member with a name that does not fit") : null),
  prefixItems: each,
  items: (all) => (Array.isArray(all.wanted) ? each(all) : rest(all, (schema) => schema.prefixItems?.length ?? 0)),
  contains: ({ value, wanted, path, fits }) => (Array.isArray(value) && !value.some((one) => fits(wanted, one)) ? said(path, "has no element that must be in it") : null),
  minItems: only(Array.isArray, (value, least) => value.length >= least, (least) => `must have at least ${least} elements`),
  maxItems: only(Array.isArray, (value, most) => value.length <= most, (most) => `may have ${most} elements`),
  uniqueItems: ({ value, wanted, path }) => (wanted && Array.isArray(value) && new Set(value.map(canonical)).size < value.length ? said(path, "has an element twice") : null),
  minProperties: only(isObject, (value, least) => Object.keys(value).length >= least, (least) => `must have at least ${least} members`),
  maxProperties: only(isObject, (value, most) => Object.keys(value).length <= most, (most) => `may have ${most} members`),
  minLength: only(isText, (value, least) => length(value) >= least, (least) => `must have at least ${least} characters`),
  maxLength: only(isText, (value, most) => length(value) <= most, (most) => `may have ${most} characters`),
  pattern: only(isText, (value, pattern) => expression(pattern).test(value), (pattern) => `must match ${pattern}`),
  minimum: only(isNumber, (value, least) => value >= least, (least) => `must be at least ${least}`),
  maximum: only(isNumber, (value, most) => value <= most, (most) => `must be at most ${most}`),
  exclusiveMinimum: only(isNumber, (value, bound) => value > bound, (bound) => `must be above ${bound}`),
  exclusiveMaximum: only(isNumber, (value, bound) => value < bound, (bound) => `must be below ${bound}`),
  multipleOf: only(isNumber, (value, step) => Math.abs(value / step - Math.round(value / step)) < 1e-9, (step) => `must be a multiple of ${step}`),
  allOf: ({ value, wanted, inside }) => firstOf(wanted, (schema) => inside(value, schema, "")),
  anyOf: ({ wanted, path, fits }) => (wanted.some((schema) => fits(schema)) ? null : said(path, "fits none of the possible schemas")),
  oneOf: ({ wanted, path, fits }) => (wanted.filter((schema) => fits(schema)).length === 1 ? null : said(path, "must fit exactly one of the possible schemas")),
  not: ({ wanted, path, fits }) => (fits(wanted) ? said(path, "fits what it must not be") : null),
  if: ({ value, wanted, schema, fits, inside }) => inside(value, (fits(wanted) ? schema.then : schema.else) ?? true, ""),
  $ref: ({ value, wanted, referred, inside }) => inside(value, referred(wanted), ""),
};

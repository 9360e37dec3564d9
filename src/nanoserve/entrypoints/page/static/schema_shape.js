// Whether a value is a JSON schema: every keyword is known and has a value of its kind. What a grammar cannot keep the server says.

const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"];
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isCount = (value) => Number.isInteger(value) && value >= 0;

/** A check of plain values: what each must be, and whether it is. */
const plain = (wanted, isGood) => (value, path) => (isGood(value) ? null : `${path} must be ${wanted}`);
const pattern = plain("a regular expression", isExpression);
const text = plain("a text", (value) => typeof value === "string");
const number = plain("a number", (value) => typeof value === "number");
const count = plain("a whole number from 0 on", isCount);
const flag = plain("true or false", (value) => typeof value === "boolean");
const any = () => null;
const texts = plain("a list of texts", (value) => Array.isArray(value) && value.every((each) => typeof each === "string"));
const oneOrMoreTypes = (value, path) => {
  const wrong = (Array.isArray(value) ? value : [value]).find((each) => !TYPES.includes(each));
  return wrong === undefined ? null : `${path} must be of ${TYPES.join(", ")}, got ${JSON.stringify(wrong)}`;
};
const schemas = (value, path) => {
  if (!isObject(value)) return `${path} must be an object of schemas`;
  return first(Object.entries(value), ([name, each]) => schemaFault(each, `${path}.${name}`));
};
const patterns = (value, path) => {
  const wrong = isObject(value) ? Object.keys(value).find((each) => !isExpression(each)) : undefined;
  return wrong === undefined ? schemas(value, path) : `${path} must have regular expressions as names, got ${JSON.stringify(wrong)}`;
};
const schemaList = (value, path) => {
  if (!Array.isArray(value) || value.length === 0) return `${path} must be a list of schemas`;
  return first([...value.entries()], ([place, each]) => schemaFault(each, `${path}[${place}]`));
};
const schemaOrList = (value, path) => (Array.isArray(value) ? schemaList(value, path) : schemaFault(value, path));

/** @type {Record<string, (value: unknown, path: string) => string | null>} by keyword */
const KEYWORDS = {
  type: oneOrMoreTypes, enum: plain("a list of at least one value", (value) => Array.isArray(value) && value.length > 0), const: any,
  properties: schemas, patternProperties: patterns, $defs: schemas, definitions: schemas, dependentSchemas: schemas,
  additionalProperties: schemaFault, propertyNames: schemaFault, items: schemaOrList, additionalItems: schemaFault, prefixItems: schemaList, contains: schemaFault,
  not: schemaFault, if: schemaFault, then: schemaFault, else: schemaFault, allOf: schemaList, anyOf: schemaList, oneOf: schemaList, unevaluatedProperties: schemaFault, unevaluatedItems: schemaFault,
  required: texts, minLength: count, maxLength: count, minItems: count, maxItems: count, minProperties: count, maxProperties: count, minContains: count, maxContains: count,
  minimum: number, maximum: number, exclusiveMinimum: number, exclusiveMaximum: number, multipleOf: plain("a number above 0", (value) => typeof value === "number" && value > 0),
  pattern, format: text, $ref: text, $id: text, $schema: text, $anchor: text, $comment: text, title: text, description: text, contentEncoding: text, contentMediaType: text,
  uniqueItems: flag, deprecated: flag, readOnly: flag, writeOnly: flag, default: any, examples: any, dependentRequired: any, discriminator: any, nullable: flag,
};

/**
 * The first thing that is wrong with a schema; null where nothing is.
 * @param {unknown} schema
 * @param {string} path how the schema is called
 * @returns {string | null}
 */
export function schemaFault(schema, path) {
  if (typeof schema === "boolean") return null;
  if (!isObject(schema)) return `${path} must be a schema: an object, true or false`;
  return first(Object.entries(schema), ([keyword, value]) => {
    if (keyword.startsWith("x-")) return null;
    return Object.hasOwn(KEYWORDS, keyword) ? KEYWORDS[keyword](value, `${path}.${keyword}`) : `${path}.${keyword} is no keyword of JSON schema`;
  });
}

/** A pattern of a schema as this browser reads it. Throws SyntaxError. */
export function expression(source) {
  try {
    return new RegExp(source, "u");
  } catch {
    return new RegExp(source); // needless backslashes are a mistake under `u` alone
  }
}

function isExpression(value) {
  try {
    return typeof value === "string" && expression(value) !== null;
  } catch {
    return false;
  }
}

function first(entries, fault) {
  for (const each of entries) {
    const problem = fault(each);
    if (problem !== null) return problem;
  }
  return null;
}

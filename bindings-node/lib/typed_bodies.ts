/** Handlers whose body is parsed and validated before they are called, by any library that implements Standard Schema. */

import { types } from 'node:util'

import { InvalidOptionError, InvalidTypeError, kind } from './errors.js'
import type { Message } from './message.js'
import { type Context, type Handler, onlyKnown } from './options.js'
import { isThenable, message as textOf, undecodable } from './outcome.js'
import { isPlain } from './values.js'

/** What is wrong with a part of a body. */
export interface StandardIssue {
  readonly message: string
  /** Where, from the outside in; not given for the body as a whole. */
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined
}

/** The result of a validation: a value, or what is wrong. */
export type StandardResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly StandardIssue[] }

/**
 * A schema of zod (3.24 or later), valibot (1.0 or later), arktype (2.0 or later), or anything else that implements version 1 of
 * [Standard Schema](https://standardschema.dev).
 */
export interface StandardSchema<Output = unknown> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => StandardResult<Output> | Promise<StandardResult<Output>>
    readonly types?: { readonly input: unknown; readonly output: Output } | undefined
  }
}

/** What a schema makes of a body. */
type Output<Schema extends StandardSchema> = NonNullable<Schema['~standard']['types']>['output']

/** The options of {@link typed}. */
export interface TypedOptions {
  /**
   * What happens to a message whose body is not JSON, or not what the schema describes: `park` parks it at once as `undecodable`, `retry`
   * retries it like any failed attempt. `park` by default; without `dlx` both reject it.
   */
  invalidBody?: 'park' | 'retry' | undefined
}

/** The body is not what the schema describes. The text names the parts that are wrong, and none of their values. */
export class ValidationError extends Error {
  /** What the schema said, unchanged: its texts may quote values of the body. */
  declare readonly issues: readonly StandardIssue[]

  /** @internal */
  constructor(text: string, issues: readonly StandardIssue[]) {
    super(text)
    // Not enumerable: whoever prints the error would print values of the body.
    Object.defineProperty(this, 'issues', { value: issues })
  }

  override get name(): string {
    return 'ValidationError'
  }
}

/**
 * A handler that gets its body as the schema's output: parsed as JSON, validated, and with the schema's defaults and conversions. The message
 * is the second argument.
 *
 *     const Order = z.object({ id: z.number() })
 *     await rmq.consume({ queue: 'orders', dlx: true }, typed(Order, async (order, msg) => { … }))
 *
 * A message with another body is parked at once as `undecodable`; its record has the error type `ValidationError`, or `SyntaxError` if the body
 * is not JSON in UTF-8, and a text with the names of the wrong fields, without their values. If the schema itself throws or rejects, that is a failed
 * attempt like any other.
 */
export function typed<Schema extends StandardSchema>(
  schema: Schema,
  handler: (body: Output<Schema>, message: Message, context: Context) => unknown,
  options: TypedOptions = {},
): Handler {
  const isObject = (typeof schema === 'object' || typeof schema === 'function') && schema !== null
  if (!isObject || typeof schema['~standard']?.validate !== 'function') {
    const what = isObject ? 'one without `~standard`' : kind(schema)
    throw new InvalidTypeError(`\`schema\` must be a Standard Schema, such as of zod, valibot or arktype, not ${what}`)
  }
  if (typeof handler !== 'function') throw new InvalidTypeError(`the handler must be a function, not ${kind(handler)}`)
  if (types.isGeneratorFunction(handler)) {
    throw new InvalidTypeError('the handler is a generator function, which nobody would run; write it without `*`')
  }
  if (!isPlain(options)) throw new InvalidTypeError(`the options of typed() must be an object, not ${kind(options)}`)
  onlyKnown(options, ['invalidBody'])
  const { invalidBody = 'park' } = options
  if (invalidBody !== 'park' && invalidBody !== 'retry') {
    throw new InvalidOptionError("`invalidBody` must be 'park' or 'retry'")
  }
  const refused = (error: Error): Error => (invalidBody === 'park' ? undecodable(error) : error)
  return (message, context) => {
    const body = parsedBody(message, refused)
    const handle = (result: StandardResult<unknown>): unknown => {
      if (result.issues !== undefined) throw refused(new ValidationError(issuesText(result.issues, body), result.issues))
      return handler(result.value as Output<Schema>, message, context)
    }
    const result = schema['~standard'].validate(body)
    return isThenable(result) ? Promise.resolve(result).then(handle) : handle(result)
  }
}

/** The body as a value of JSON. Throws what `refused` makes of a `SyntaxError` that quotes nothing of the body. @internal */
export function parsedBody(message: Message, refused: (error: Error) => Error): unknown {
  return parsed(decoded(message, refused), refused)
}

/** The body as text. Bytes that are not UTF-8 would become U+FFFD, and be handled as if they had been published. */
function decoded(message: Message, refused: (error: Error) => Error): string {
  const text = message.text()
  if (!text.includes('\ufffd')) return text
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(message.body)
  } catch {
    throw refused(new SyntaxError('the body is not JSON: it is not UTF-8'))
  }
}

/** Text as JSON. What V8 says of a text that is none quotes a part of it, which is cut off. */
function parsed(text: string, refused: (error: Error) => Error): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const why = (textOf(error) ?? '').replace(/,? ?(?:\.{3})?".*" ?(?:\.{3})? is not valid JSON$/s, '')
    throw refused(new SyntaxError(why === '' ? 'the body is not JSON' : `the body is not JSON: ${why}`))
  }
}

/** How many issues a text names. */
const MOST = 10
/** How many values are looked for in a text. */
const MOST_VALUES = 200

/** The issues as one text, each as `items.0.price: expected a number`. */
function issuesText(issues: readonly StandardIssue[], body: unknown): string {
  const texts = issues.slice(0, MOST).map(({ message, path = [] }) => {
    // Not with its own `map`, which makes another path of arktype's.
    const keys = Array.from(path, (part) => (typeof part === 'object' ? part.key : part))
    const text = masked(String(message), valueAt(body, keys))
    return keys.length === 0 ? text : `${keys.map(String).join('.')}: ${text}`
  })
  const more = issues.length - texts.length
  return more === 0 ? texts.join('; ') : `${texts.join('; ')}; and ${more} more`
}

function valueAt(body: unknown, keys: readonly PropertyKey[]): unknown {
  return keys.reduce<unknown>((value, key) => {
    const isObject = typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    return isObject ? (value as { [key: PropertyKey]: unknown })[key] : undefined
  }, body)
}

/** A text of a schema without the values of the body that it quotes: it goes into records, logs and alerts. */
function masked(text: string, value: unknown): string {
  if (typeof value === 'number') return text.replace(new RegExp(`(?<![\\w.-])${value}(?!\\w|\\.\\d)`, 'g'), kind(value))
  if (!/["'`{[]/.test(text)) return text
  if (typeof value === 'object' && value !== null) text = text.replaceAll(JSON.stringify(value), kind(value))
  const values = [value]
  // Grows while it is looked at: a schema may say of an object what is wrong within it.
  for (const one of values) {
    if (typeof one === 'string') {
      const plain = [`"${one}"`, `'${one}'`, `\`${one}\``, `"${one.replaceAll('"', '\\"')}"`, JSON.stringify(one)]
      for (const quoted of plain) text = text.replaceAll(quoted, kind(one))
    } else if (typeof one === 'object' && one !== null) {
      values.push(...Object.values(one).slice(0, MOST_VALUES - values.length))
    }
  }
  return text
}

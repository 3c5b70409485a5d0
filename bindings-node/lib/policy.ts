/** Retry policies, and the rules that choose one. */

import { type Duration, text } from './duration.js'
import { InvalidOptionError, InvalidTypeError, callNative, choices, kind } from './errors.js'
import { native } from './native.js'

/**
 * How long a failed message waits, and how often it is retried before it is parked.
 *
 * Made by {@link exponential}, {@link fixed}, {@link linear} or {@link list}, or from a string, which is the same in every language:
 * `new Policy('exponential(1s, factor=4, max=5m, retries=5)')`.
 */
export class Policy {
  /** The policy as text, in its full form. */
  readonly text: string
  /** How many retries a message gets before it is parked. Attempts are one more. */
  readonly retries: number
  /** The delays before the retries in milliseconds, without jitter; at most the first 1000. */
  readonly delays: readonly number[]

  /** Parses a policy. Throws {@link InvalidPolicyError} if it cannot be parsed or cannot work. */
  constructor(text: string) {
    if (typeof text !== 'string') {
      throw new InvalidTypeError(`a policy is a string such as 'fixed(5s, retries=3)', not ${kind(text)}`)
    }
    const read = callNative(() => native.readPolicy(text))
    this.text = read.text
    this.retries = read.retries
    this.delays = Object.freeze(read.delays)
    Object.freeze(this)
  }

  toString(): string {
    return this.text
  }
}

/** The options of every policy. */
export interface PolicyOptions {
  /** How many retries a message gets before it is parked; 5 by default, and for {@link list} as many as delays. */
  retries?: number | undefined
  /** 0 to 0.9; 0 by default. Each delay is multiplied by `1 - jitter`, `1 - jitter / 2` or 1, at random. */
  jitter?: number | undefined
  /** A message is parked as `too-old` if its next attempt would be later than this after its first failure. No limit by default. */
  maxAge?: Duration | undefined
  /** From when `maxAge` is counted: the first failure by default, or the AMQP timestamp of the message. */
  ageFrom?: 'first-failure' | 'published' | undefined
}

/** Options of {@link exponential}. */
export interface ExponentialOptions extends PolicyOptions {
  /** By what each further delay is multiplied; 4 by default. */
  factor?: number | undefined
  /** The longest delay; 5 minutes by default. */
  max?: Duration | undefined
}

/** Options of {@link linear}. */
export interface LinearOptions extends PolicyOptions {
  /** What is added to each further delay; 1 second by default. */
  step?: Duration | undefined
  /** The longest delay; 5 minutes by default. */
  max?: Duration | undefined
}

const NUMBERS = ['factor', 'retries', 'jitter']
const DURATIONS: { readonly [option: string]: string } = { step: 'step', max: 'max', maxAge: 'max_age' }

function policy(name: string, first: string[], options: object, known: string[]): Policy {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidTypeError(`the options of ${name}() must be an object, not ${kind(options)}`)
  }
  const parts = [...first]
  const unknown = Object.keys(options).find((option) => !known.includes(option))
  if (unknown !== undefined) {
    throw new InvalidTypeError(`${name}() has no option \`${unknown}\`; ${choices(unknown, known)}`)
  }
  for (const option of known) {
    const value = (options as { readonly [option: string]: unknown })[option]
    if (value === undefined) continue
    if (NUMBERS.includes(option)) {
      if (typeof value !== 'number') throw new InvalidTypeError(`\`${option}\` must be a number, not ${kind(value)}`)
      parts.push(`${option}=${value}`)
    } else if (option === 'ageFrom') {
      if (value !== 'first-failure' && value !== 'published') {
        throw new InvalidOptionError("`ageFrom` must be 'first-failure' or 'published'")
      }
      parts.push(`age_from=${value}`)
    } else {
      parts.push(`${DURATIONS[option]}=${text(value as Duration, option)}`)
    }
  }
  return new Policy(`${name}(${parts.join(', ')})`)
}

const COMMON = ['retries', 'jitter', 'maxAge', 'ageFrom']

/** Delays that are multiplied by `factor` (4) with each retry, from `initial` (1 second) up to `max` (5 minutes); 5 retries. */
export function exponential(initial: Duration = '1s', options: ExponentialOptions = {}): Policy {
  return policy('exponential', [text(initial, 'initial')], options, ['factor', 'max', ...COMMON])
}

/** The same delay before every retry; 5 retries. */
export function fixed(delay: Duration, options: PolicyOptions = {}): Policy {
  return policy('fixed', [text(delay, 'delay')], options, COMMON)
}

/** Delays that grow by `step` (1 second) with each retry, from `initial` up to `max` (5 minutes); 5 retries. */
export function linear(initial: Duration, options: LinearOptions = {}): Policy {
  return policy('linear', [text(initial, 'initial')], options, ['step', 'max', ...COMMON])
}

/** These delays, one after the other. By default there are as many retries as delays; with more retries the last delay repeats. */
export function list(delays: readonly Duration[], options: PolicyOptions = {}): Policy {
  if (!Array.isArray(delays)) throw new InvalidTypeError(`\`delays\` must be an array of durations, not ${kind(delays)}`)
  const texts = (delays as Duration[]).map((delay) => text(delay, 'delays'))
  return policy('list', texts, options, COMMON)
}

/** Any class. */
export type ErrorClass = abstract new (...args: any[]) => unknown

/**
 * Throws unless the value is a class. A predicate would never be called; most functions that are not classes have no prototype.
 *
 * @internal
 */
export function errorClass(option: string, value: unknown): ErrorClass {
  if (typeof value !== 'function') throw new InvalidTypeError(`\`${option}\` must be error classes, not ${kind(value)}`)
  if (typeof value.prototype !== 'object' || value.prototype === null) {
    const which = value.name === '' ? '' : ` \`${String(value.name)}\``
    throw new InvalidTypeError(`\`${option}\` takes error classes, not the function${which}; to decide at run time, throw \`park(error)\``)
  }
  return value as unknown as ErrorClass
}

function className(Class: ErrorClass): string {
  const { name } = Class as { readonly name?: unknown }
  if (typeof name === 'string' && name !== '') return name
  throw new InvalidTypeError('`error` of a rule must be a class with a name, by which it is looked for')
}

/** The conditions of a {@link rule}. All given conditions must match. */
export interface Conditions {
  /** A topic pattern as in bindings, such as `"eu.#"`, for the original routing key. */
  routingKey?: string | undefined
  /** Names and values of headers. `*` in a value matches any text. */
  headers?: { readonly [name: string]: string } | undefined
  /**
   * An error class. Only its name is compared, so it matches errors of that class, of its subclasses, and of any other class of the
   * same name. Or a pattern for the name of a class or for `error.code`: `"*Timeout"`, `"ECONN*"`.
   */
  error?: ErrorClass | string | undefined
}

/** A rule in the form that the core reads. @internal */
export interface RuleInput {
  policy: string
  routing_key?: string | undefined
  headers: Record<string, string>
  error?: string | undefined
}

let ruleOf: (input: RuleInput) => Rule
/** The rule in the form that the core reads. @internal */
export let inputOf: (rule: Rule) => RuleInput

/** A policy for messages that meet conditions. {@link rule} makes it. */
export class Rule {
  readonly #input: RuleInput

  private constructor(input: RuleInput) {
    this.#input = input
  }

  static {
    ruleOf = (input) => new Rule(input)
    inputOf = (rule) => rule.#input
  }
}

/**
 * A policy for messages that meet conditions. The first rule whose conditions all match decides. As a string:
 * `"routing_key=eu.#, error=*Timeout => fixed(5s, retries=3)"`.
 */
export function rule(conditions: Conditions, policy: Policy | string): Rule {
  if (typeof conditions !== 'object' || conditions === null) {
    throw new InvalidTypeError(`the conditions of a rule must be an object, not ${kind(conditions)}`)
  }
  const { routingKey, headers, error, ...rest } = conditions
  const unknown = Object.keys(rest)[0]
  if (unknown !== undefined) {
    throw new InvalidTypeError(`a rule has no condition \`${unknown}\`; it has routingKey, headers and error`)
  }
  if (routingKey !== undefined && typeof routingKey !== 'string') {
    throw new InvalidTypeError(`\`routingKey\` must be a string, not ${kind(routingKey)}`)
  }
  if (headers !== undefined && (typeof headers !== 'object' || headers === null)) {
    throw new InvalidTypeError(`\`headers\` must be an object, not ${kind(headers)}`)
  }
  if (error !== undefined && typeof error !== 'string' && typeof error !== 'function') {
    throw new InvalidTypeError(`\`error\` must be an error class or a pattern, not ${kind(error)}`)
  }
  const pairs = Object.entries(headers ?? {}).map(([name, value]) => [name, String(value)] as const)
  if (routingKey === undefined && pairs.length === 0 && error === undefined) {
    throw new InvalidOptionError('a rule needs a condition: `routingKey`, `headers` or `error`')
  }
  if (!(policy instanceof Policy) && typeof policy !== 'string') {
    throw new InvalidTypeError(`\`policy\` of a rule must be a policy or a string such as 'fixed(5s)', not ${kind(policy)}`)
  }
  const read = policy instanceof Policy ? policy : callNative(() => native.readPolicy(policy), 'policy')
  return ruleOf({
    policy: read.text,
    routing_key: routingKey,
    headers: Object.fromEntries(pairs),
    error: error === undefined || typeof error === 'string' ? error : className(errorClass('error', error)),
  })
}

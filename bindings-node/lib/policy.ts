/** Retry policies and the rules that choose among them. */

import { type Duration, text } from './duration.js'
import { InvalidOptionError, InvalidTypeError, asked, kind } from './errors.js'
import { native } from './native.js'

/**
 * How long a failed message waits, and how often it comes back before it is parked.
 *
 * Made by {@link exponential}, {@link fixed}, {@link linear} or {@link list}, or from the text that every language reads:
 * `new Policy('exponential(1s, factor=4, max=5m, retries=5)')`.
 */
export class Policy {
  /** The policy as text, in its full form. */
  readonly text: string
  /** How many retries there are before a message is parked; attempts are one more. */
  readonly retries: number
  /** The delay before each retry in milliseconds, before jitter. */
  readonly delays: readonly number[]

  /** Reads a policy; throws {@link InvalidPolicyError}. */
  constructor(text: string) {
    if (typeof text !== 'string') {
      throw new InvalidTypeError(`a policy is a text such as 'fixed(5s, retries=3)', not ${kind(text)}`)
    }
    const read = asked(() => native.readPolicy(text))
    this.text = read.text
    this.retries = read.retries
    this.delays = Object.freeze(read.delays)
    Object.freeze(this)
  }

  toString(): string {
    return this.text
  }
}

/** What every policy may say beside its delays. */
export interface PolicyOptions {
  /** How often a message comes back before it is parked; 5 unless said otherwise. */
  retries?: number
  /** 0 to 0.9: spreads a burst over three delays up to that share shorter. */
  jitter?: number
  /** A message whose next attempt would come later than this is parked. */
  maxAge?: Duration
  /** What `maxAge` counts from; the first failure unless said otherwise. */
  ageFrom?: 'first-failure' | 'published'
}

/** Options of {@link exponential}. */
export interface ExponentialOptions extends PolicyOptions {
  /** Each delay is that many times the one before; 4 unless said otherwise. */
  factor?: number
  /** The longest delay; 5 minutes unless said otherwise. */
  max?: Duration
}

/** Options of {@link linear}. */
export interface LinearOptions extends PolicyOptions {
  /** Each delay is that much longer than the one before; as long as the first unless said otherwise. */
  step?: Duration
  /** The longest delay. */
  max?: Duration
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
    throw new InvalidTypeError(`${name}() has no option \`${unknown}\`; its options are ${known.join(', ')}`)
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

/** Delays that grow by `factor` (4) from `initial` up to `max` (5 minutes); 5 retries. */
export function exponential(initial: Duration = '1s', options: ExponentialOptions = {}): Policy {
  return policy('exponential', [text(initial, 'initial')], options, ['factor', 'max', ...COMMON])
}

/** The same delay every time; 5 retries. */
export function fixed(delay: Duration, options: PolicyOptions = {}): Policy {
  return policy('fixed', [text(delay, 'delay')], options, COMMON)
}

/** Delays that grow by `step` up to `max`; 5 retries. */
export function linear(initial: Duration, options: LinearOptions = {}): Policy {
  return policy('linear', [text(initial, 'initial')], options, ['step', 'max', ...COMMON])
}

/** These delays, one after the other; as many retries as delays, and the last one repeats if there are more. */
export function list(delays: readonly Duration[], options: PolicyOptions = {}): Policy {
  if (!Array.isArray(delays)) throw new InvalidTypeError(`\`delays\` must be an array of durations, not ${kind(delays)}`)
  const texts = (delays as Duration[]).map((delay) => text(delay, 'delays'))
  return policy('list', texts, options, COMMON)
}

/** Any class: what it is made from is nobody's business here. */
export type ErrorClass = abstract new (...args: any[]) => unknown

/**
 * A class, to be told from a predicate, which nobody would ever call; most functions that are none have no prototype.
 *
 * @internal
 */
export function errorClass(option: string, value: unknown): ErrorClass {
  if (typeof value !== 'function') throw new InvalidTypeError(`\`${option}\` must be error classes, not ${kind(value)}`)
  if (typeof value.prototype !== 'object' || value.prototype === null) {
    const which = value.name === '' ? '' : ` \`${String(value.name)}\``
    throw new InvalidTypeError(`\`${option}\` takes error classes, and the function${which} is none`)
  }
  return value as unknown as ErrorClass
}

function className(Class: ErrorClass): string {
  const { name } = Class as { readonly name?: unknown }
  if (typeof name === 'string' && name !== '') return name
  throw new InvalidTypeError('`error` of a rule must be a class with a name, by which it is looked for')
}

/** The conditions of a {@link rule}; all that are given must hold. */
export interface Conditions {
  /** A topic pattern as in bindings: `"eu.#"`. */
  routingKey?: string
  /** Headers by name, and their values, in which `*` is any text. */
  headers?: { readonly [name: string]: string }
  /**
   * An error class, which stands for its name: errors of that class, of its subclasses, and of every other class of that name.
   * Or a pattern for the name of a class, or for `error.code`: `"*Timeout"`, `"ECONN*"`.
   */
  error?: ErrorClass | string
}

/** A rule as the core reads it. @internal */
export interface RuleInput {
  policy: string
  routing_key?: string | undefined
  headers: Record<string, string>
  error?: string | undefined
}

let ruleOf: (input: RuleInput) => Rule
/** A rule as the core reads it. @internal */
export let inputOf: (rule: Rule) => RuleInput

/** Another policy under conditions. Made by {@link rule}. */
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
 * Another policy under conditions; of several rules the first one that holds decides. As text, where texts are taken:
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
    throw new InvalidTypeError(`\`policy\` of a rule must be a policy or a text such as 'fixed(5s)', not ${kind(policy)}`)
  }
  const read = policy instanceof Policy ? policy : asked(() => native.readPolicy(policy), 'policy')
  return ruleOf({
    policy: read.text,
    routing_key: routingKey,
    headers: Object.fromEntries(pairs),
    error: error === undefined || typeof error === 'string' ? error : className(errorClass('error', error)),
  })
}

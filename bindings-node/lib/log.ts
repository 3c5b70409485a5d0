/** Where log lines go: warnings and errors to the console, or all lines to a logger of the application. */

import { InvalidOptionError, InvalidTypeError, camel, choices, kind } from './errors.js'
import { native } from './native.js'
import { isThenable } from './outcome.js'

/** What a logger must have. `console`, pino and winston have it. */
export interface Logger {
  error(text: string): void
  warn(text: string): void
  info(text: string): void
  debug(text: string): void
}

/**
 * What a line is about, by name: `queue`, `messageId`, `attempt`, `errorType`, `error` and others. Numbers are `attempt`, `crashes`, `tries`,
 * `count`, `channels`, `tasks` and `dropped`; all other values are strings, with escapes for characters that a terminal obeys.
 */
export interface LogFields {
  readonly [name: string]: string | number
}

/** A logger that takes the fields first, such as pino. */
export interface FieldsFirstLogger {
  error(fields: LogFields, text: string): void
  warn(fields: LogFields, text: string): void
  info(fields: LogFields, text: string): void
  debug(fields: LogFields, text: string): void
}

/** A logger that takes the fields after the text, such as winston and `console`. Lines without fields are only a text. */
export interface FieldsLastLogger {
  error(text: string, fields?: LogFields): void
  warn(text: string, fields?: LogFields): void
  info(text: string, fields?: LogFields): void
  debug(text: string, fields?: LogFields): void
}

/** The options of {@link setLogger}. */
export interface LoggerOptions<Fields extends 'first' | 'last' | 'none' = 'first' | 'last' | 'none'> {
  /**
   * Where the logger takes the fields of a line: `first` calls it with `(fields, text)`, as pino wants it, and `last` with `(text, fields)`, as
   * winston and `console` do; there `%` in the text is written as `\u0025` before a letter of a format. The text has no fields and no stack
   * then. `none` by default: they are part of the text.
   */
  fields?: Fields | undefined
}

type Level = keyof Logger

const LEVELS = ['error', 'warn', 'info', 'debug'] as const satisfies readonly Level[]
const quiet = (): void => {}

/** A line: what happened, what it is about, and how the fields are told to a logger that gets only a text. */
interface Line {
  text: string
  fields: { readonly [name: string]: string | number | undefined }
  tail: string
}

/** The ways to call a logger. */
const WRITE = {
  none: (logger: Logger) => (level: Level, { text, tail }: Line) => logger[level](written(text + tail)),
  first: (logger: FieldsFirstLogger) => (level: Level, { text, fields }: Line) => logger[level](present(fields), written(text)),
  last: (logger: FieldsLastLogger) => (level: Level, { text, fields }: Line) => {
    const about = present(fields)
    return Object.keys(about).length === 0 ? logger[level](written(text)) : logger[level](unformatted(written(text)), about)
  },
}

/**
 * A text that is no format string, because one would take the fields for its arguments. `%%` would not do: winston without `splat()` keeps
 * both, and drops the fields.
 */
function unformatted(text: string): string {
  return text.replace(/%(?=[scdjifoO%])/g, '\\u0025')
}

/** Of what is not wanted, nothing is formatted. */
let wanted: readonly Level[] = ['error', 'warn']
let write: (level: Level, line: Line) => unknown = WRITE.none({
  error: (text) => console.error(text),
  warn: (text) => console.warn(text),
  info: quiet,
  debug: quiet,
})

/**
 * Sets the logger of this environment (the main thread, or a worker); `false` turns logging off. By default warnings and errors go to
 * the console. Throws {@link InvalidTypeError} if a method is missing.
 *
 *     setLogger(pino(), { fields: 'first' })
 *     setLogger(winston.createLogger(…), { fields: 'last' })
 *
 * Each environment logs the errors of its own listeners and, at `debug`, the stacks of its handlers' errors. The native half logs once
 * per process, for all threads: failed attempts and what follows, lost connections. Its lines go to the environment that used the
 * package first and has a client that is not closed, mostly the main thread.
 */
export function setLogger(logger: Logger | false, options?: LoggerOptions<'none'>): void
export function setLogger(logger: FieldsFirstLogger, options: LoggerOptions<'first'>): void
export function setLogger(logger: FieldsLastLogger, options: LoggerOptions<'last'>): void
export function setLogger(logger: Logger | FieldsFirstLogger | FieldsLastLogger | false, options: LoggerOptions = {}): void {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidTypeError(`the options of setLogger() must be an object, not ${kind(options)}`)
  }
  const { fields = 'none', ...rest } = options
  const unknown = Object.keys(rest)[0]
  if (unknown !== undefined) throw new InvalidTypeError(`there is no option \`${unknown}\`; ${choices(unknown, ['fields'])}`)
  if (!Object.hasOwn(WRITE, fields)) throw new InvalidOptionError("`fields` must be 'first', 'last' or 'none'")
  if (logger === false) {
    wanted = []
    return
  }
  for (const level of LEVELS) {
    const isObject = (typeof logger === 'object' || typeof logger === 'function') && logger !== null
    if (!isObject || typeof logger[level] !== 'function') {
      const what = isObject ? `one without \`${level}\`` : kind(logger)
      throw new InvalidTypeError(`\`logger\` must be an object with error, warn, info and debug, not ${what}`)
    }
  }
  wanted = LEVELS
  write = WRITE[fields](logger as Logger & FieldsFirstLogger & FieldsLastLogger)
  native.wantAllLines()
}

/** Control characters, line ends, and marks that change the direction of text. */
const CONTROL_CHARACTERS = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g

/** A text on one line, with escapes for characters that a terminal obeys: publishers choose parts of it. @internal */
export function escaped(text: string): string {
  return text.replace(CONTROL_CHARACTERS, (character) => {
    const short = { '\n': '\\n', '\r': '\\r', '\t': '\\t' }[character]
    return short ?? `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
  })
}

/** A stack. The lines of an error's text are indented, so that they do not look like lines of the log. */
function lines(text: string): string {
  const [first = '', ...others] = text.split('\n').map(escaped)
  return [first, ...others.map((line) => (/^\s/.test(line) ? line : `    ${line}`))].join('\n')
}

/** The fields of the native half that are numbers. All others are texts, even if a queue is called `7`. */
const NUMBERS = ['attempt', 'channels', 'count', 'crashes', 'dropped', 'tasks', 'tries']

/** The fields of a line of the native half, with the names of this language. @internal */
export function fieldsOf(given: readonly (readonly [string, string])[]): LogFields {
  return Object.fromEntries(
    given.map(([name, value]) => [camel(name), NUMBERS.includes(name) && /^\d{1,15}$/.test(value) ? Number(value) : value]),
  )
}

function written(text: string): string {
  return `retryrmq: ${lines(text)}`
}

/** The fields that have a value. */
function present(fields: Line['fields']): LogFields {
  const shown = Object.entries(fields).filter(([, value]) => value !== undefined)
  return Object.fromEntries(shown.map(([name, value]) => [name, typeof value === 'string' ? lines(value) : value])) as LogFields
}

/** Logs a line. Errors of the logger are ignored. @internal */
export function log(level: Level, text: string, fields: Line['fields'] = {}, tail = ''): void {
  if (!wanted.includes(level)) return
  try {
    const returned = write(level, { text, fields, tail })
    // An `async` logger that rejects would end the process.
    if (isThenable(returned)) returned.then(undefined, quiet)
  } catch {
    // There is nowhere to report a logger that throws.
  }
}

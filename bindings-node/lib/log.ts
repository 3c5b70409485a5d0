/** Where log lines go: warnings and errors to the console, or all lines to a logger of the application. */

import { InvalidTypeError, kind } from './errors.js'
import { native } from './native.js'
import { isThenable } from './outcome.js'

/** What a logger must have. `console`, pino and winston have it. */
export interface Logger {
  error(text: string): void
  warn(text: string): void
  info(text: string): void
  debug(text: string): void
}

const quiet = (): void => {}
const initial: Logger = {
  error: (text) => console.error(text),
  warn: (text) => console.warn(text),
  info: quiet,
  debug: quiet,
}
let current = initial

/**
 * Sets the logger of this environment (the main thread, or a worker); `false` turns logging off. By default warnings and errors go to
 * the console. Throws {@link InvalidTypeError} if a method is missing.
 *
 * Each environment logs the errors of its own listeners and, at `debug`, the stacks of its handlers' errors. The native half logs once
 * per process, for all threads: failed attempts and what follows, lost connections. Its lines go to the environment that used the
 * package first and still exists, mostly the main thread.
 */
export function setLogger(logger: Logger | false): void {
  if (logger === false) {
    current = { error: quiet, warn: quiet, info: quiet, debug: quiet }
    return
  }
  for (const level of ['error', 'warn', 'info', 'debug'] as const) {
    const isObject = (typeof logger === 'object' || typeof logger === 'function') && logger !== null
    if (!isObject || typeof logger[level] !== 'function') {
      const what = isObject ? `one without \`${level}\`` : kind(logger)
      throw new InvalidTypeError(`\`logger\` must be an object with error, warn, info and debug, not ${what}`)
    }
  }
  current = logger
  native.wantAllLines()
}

/** Control characters, line ends, and marks that change the direction of text. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g

/** A text on one line, with escapes for characters that a terminal obeys: publishers choose parts of it. @internal */
export function escaped(text: string): string {
  return text.replace(UNSEEN, (character) => {
    const short = { '\n': '\\n', '\r': '\\r', '\t': '\\t' }[character]
    return short ?? `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
  })
}

/** A stack. The lines of an error's text are indented, so that they do not look like lines of the log. */
function lines(text: string): string {
  const [first = '', ...others] = text.split('\n').map(escaped)
  return [first, ...others.map((line) => (/^\s/.test(line) ? line : `    ${line}`))].join('\n')
}

/** Logs a line. Errors of the logger are ignored. @internal */
export function log(level: keyof Logger, text: string): void {
  try {
    const returned: unknown = current[level](`retryrmq: ${lines(text)}`)
    // An `async` logger that rejects would end the process.
    if (isThenable(returned)) returned.then(undefined, quiet)
  } catch {
    // There is nowhere to report a logger that throws.
  }
}

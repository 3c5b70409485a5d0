/** Where log lines go: to the console if they are warnings, or to a logger of the application's own. */

import { InvalidTypeError, kind } from './errors.js'
import { native } from './native.js'
import { isThenable } from './outcome.js'

/** What a logger must have; `console`, pino and winston do. */
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
 * Has this environment (the main thread, or a worker) log to `logger`, or not at all. Unless called, warnings and errors go
 * to the console.
 *
 * An environment logs its own listeners, and at `debug` the stacks of its handlers' errors. What the native half has to say
 * (attempts that failed and what follows, lost connections), it says once in a process, whichever thread it is about: to the
 * environment that used it first and is still there, mostly the main thread.
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
  native.setDebug(true)
}

/** Control characters, ends of lines, and marks that change the direction of a text. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g

/** A text on one line, that steers no terminal: what publishers choose is in it. @internal */
export function escaped(text: string): string {
  return text.replace(UNSEEN, (character) => {
    const short = { '\n': '\\n', '\r': '\\r', '\t': '\\t' }[character]
    return short ?? `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
  })
}

/** A stack, whose lines are its own: those of an error's text are indented. */
function lines(text: string): string {
  const [first = '', ...others] = text.split('\n').map(escaped)
  return [first, ...others.map((line) => (/^\s/.test(line) ? line : `    ${line}`))].join('\n')
}

/** Logs a line; whatever the logger does, nothing else is kept from its work. @internal */
export function log(level: keyof Logger, text: string): void {
  try {
    const returned: unknown = current[level](`retryrmq: ${lines(text)}`)
    // An `async` logger that rejects would end the process.
    if (isThenable(returned)) returned.then(undefined, quiet)
  } catch {
    // A logger that throws has nobody to tell.
  }
}

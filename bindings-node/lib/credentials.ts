/** Logins from a function that is called at every connection. */

import { AsyncResource } from 'node:async_hooks'

import { bridge } from './bridge.js'
import { type Duration, milliseconds } from './duration.js'
import { InvalidOptionError, InvalidTypeError, kind } from './errors.js'
import { onlyKnown, string } from './options.js'
import { message } from './outcome.js'

/** A user, a password or token, and how long that is good for. */
export interface Login {
  /** May be empty with an OAuth 2 token, which itself says who it is for. */
  user: string
  /** A password, or a token. The end of a token that is a JWT is read from its `exp`. */
  password: string
  /** How long from now the broker takes it; before that the function is called again, and the connection renewed. */
  expiresIn?: Duration
}

/**
 * Gives the login. It is called at every connection, so twice by `connect` and again after a loss, and before a
 * password with an end is over. What it returns is used at once and not kept.
 *
 * If it throws, rejects, returns something else or takes longer than 20 seconds, the login has failed: `connect`
 * rejects with an {@link AuthenticationFailedError}, and a lost connection is tried again, with another call. The
 * texts of its errors are shown and logged; no password should be in them.
 */
export type Credentials = () => Login | PromiseLike<Login>

const KNOWN = ['user', 'password', 'expiresIn']
/** The most of an error's text that is shown. */
const MOST_TEXT = 1024

/** Has the bridge ask this function; its number there. It runs in the asynchronous context of whoever calls this. @internal */
export function asking(credentials: unknown): number {
  if (typeof credentials !== 'function') {
    throw new InvalidTypeError(`\`credentials\` must be a function that returns { user, password }, not ${kind(credentials)}`)
  }
  const context = new AsyncResource('RetryRmqCredentials')
  return bridge().asks((question) => {
    void context.runInAsyncScope(answer, undefined, credentials as Credentials, question)
  })
}

async function answer(credentials: Credentials, question: number): Promise<void> {
  try {
    const { user, password, expiresIn } = read(await credentials())
    bridge().native.answer(question, user, password, expiresIn ?? null)
  } catch (error) {
    bridge().native.refuse(question, why(error))
  }
}

/** The login, read once: its getters may be anything. No value is in what this throws. */
function read(login: unknown): { user: string; password: string; expiresIn: number | undefined } {
  if (typeof login !== 'object' || login === null || Array.isArray(login)) {
    throw new InvalidTypeError(`it must return { user, password }, not ${kind(login)}`)
  }
  onlyKnown(login, KNOWN)
  const { user, password, expiresIn } = login as Partial<Login>
  return {
    user: string('user', user),
    password: string('password', password),
    expiresIn: expiresIn === undefined ? undefined : lifetime(expiresIn),
  }
}

function lifetime(expiresIn: Duration): number {
  if (typeof expiresIn !== 'string') return milliseconds(expiresIn, 'expiresIn')
  try {
    return milliseconds(expiresIn, 'expiresIn')
  } catch {
    throw new InvalidOptionError("`expiresIn` must be a number of milliseconds or a text such as '5m'")
  }
}

/** What an error says. What is thrown and is none may be the login itself, so nothing of it is shown. */
function why(thrown: unknown): string {
  return (message(thrown) ?? `it threw ${kind(thrown)}`).slice(0, MOST_TEXT)
}

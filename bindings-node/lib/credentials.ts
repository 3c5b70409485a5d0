/** Logins from a function that is called for every connection. */

import { AsyncResource } from 'node:async_hooks'

import { MANUAL_DESTROY, dispatcher } from './notifications.js'
import { type Duration, milliseconds } from './duration.js'
import { InvalidOptionError, InvalidTypeError, kind } from './errors.js'
import { onlyKnown, string } from './options.js'
import { message } from './outcome.js'

/** A user, a password or token, and how long it is valid. */
export interface Login {
  /** May be empty with an OAuth 2 token, because the token names the user. */
  user: string
  /** A password, or a token. If the token is a JWT, its lifetime is read from `exp`. */
  password: string
  /**
   * How long from now until the password expires. Before that, the function is called again and the connections are renewed. Omitted: it does not
   * expire, unless it is a JWT with `exp`.
   */
  expiresIn?: Duration | undefined
}

/**
 * A function that returns the login. It is called for every connection: twice by `connect`, again after a loss, and before a password
 * expires. The login is used at once and not kept.
 *
 * If the function throws, rejects, returns something else or takes longer than 20 seconds, the login has failed. `connect` then rejects
 * with an {@link AuthenticationFailedError}; a lost connection is tried again, with another call. The messages of its errors are shown and
 * logged, so they must not contain a password.
 *
 * The client cannot end a call that hangs. While eight calls have not ended, the function is not called again, and the login fails. So pass
 * `signal` on to what it waits for, such as `fetch`: it aborts when nobody awaits the login any more, because the client was closed or the 20
 * seconds are over.
 */
export type Credentials = (context: { readonly signal: AbortSignal }) => Login | PromiseLike<Login>

const KNOWN = ['user', 'password', 'expiresIn']
/** The most calls that may run at a time. Two or three are needed; further ones hang, perhaps forever. */
const MOST_CALLS = 8
/** Why a call is to end. */
const WITHDRAWN = 'nobody awaits this login any more: the client was closed, or 20 seconds are over'
/** The most of an error's message that is shown. */
const MOST_TEXT = 1024

/** Registers the function with the dispatcher, and returns its number. It runs in the asynchronous context of this call. @internal */
export function registerCredentials(credentials: unknown): number {
  if (typeof credentials !== 'function') {
    throw new InvalidTypeError(`\`credentials\` must be a function that returns { user, password }, not ${kind(credentials)}`)
  }
  const context = new AsyncResource('RetryRmqCredentials', MANUAL_DESTROY)
  const own = dispatcher()
  let running = 0
  return own.addCredentialProvider({
    request: (request) => {
      if (running >= MOST_CALLS) {
        own.native.refuse(request, `${MOST_CALLS} calls of it have not ended; have it give up after 20 seconds`)
        return
      }
      running++
      const call = { own, context, credentials: credentials as Credentials }
      void context.runInAsyncScope(answer, undefined, call, request).finally(() => running--)
    },
    forgotten: () => void context.emitDestroy(),
  })
}

interface Call {
  /** The dispatcher that asks. A call may outlive it. */
  own: ReturnType<typeof dispatcher>
  context: AsyncResource
  credentials: Credentials
}

async function answer({ own, context, credentials }: Call, request: number): Promise<void> {
  const controller = new AbortController()
  const abort = (): void => controller.abort(new DOMException(WITHDRAWN, 'AbortError'))
  // Who listens to the signal is in the context of the caller, too.
  const batchResults = own.onWithdrawn(request, () => context.runInAsyncScope(abort))
  try {
    const { user, password, expiresIn } = read(await credentials({ signal: controller.signal }))
    own.native.answer(request, user, password, expiresIn ?? null)
  } catch (error) {
    own.native.refuse(request, why(error))
  } finally {
    batchResults()
  }
}

/** Reads the login once, because getters may do anything. Its errors contain no value. */
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
    throw new InvalidOptionError("`expiresIn` must be a number of milliseconds or a string such as '5m'")
  }
}

/** The message of an error. A thrown value that is not an error may be the login itself, so it is not shown. */
function why(thrown: unknown): string {
  return (message(thrown) ?? `it threw ${kind(thrown)}`).slice(0, MOST_TEXT)
}

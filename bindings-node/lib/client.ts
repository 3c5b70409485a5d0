/** The client: it consumes, publishes and gives access to parked messages. */

import { constants } from 'node:os'
import { inspect } from 'node:util'

import { dispatcher } from './notifications.js'
import { type Consumer, consumerOf, disposable } from './consumer.js'
import { type Credentials, registerCredentials } from './credentials.js'
import { timer } from './duration.js'
import { InvalidOptionError, InvalidTypeError, callNative, clientClosed, kind } from './errors.js'
import { log } from './log.js'
import { type Middleware, type PublishMiddleware, functions, publishThroughMiddleware } from './middleware.js'
import { type Client as NativeClient, type Connecting, type Subscription, native } from './native.js'
import {
  type BatchHandler,
  type BatchOptions,
  type ConsumerOptions,
  type Handler,
  type QueueType,
  abortSignal,
  flag,
  onlyKnown,
  plan,
  string,
  unlessAborted,
} from './options.js'
import { type ParkedMessages, parkedOf } from './parked.js'
import { type Body, type PublishOptions, outgoing, publishable } from './publish.js'
import { clearTimeout } from './timers.js'

/** The options of {@link connect}. */
export interface ConnectOptions {
  /** The version of your application, for the history of failed messages. */
  appVersion?: string | undefined
  /** The type of the waiting and parking queues; `quorum` by default. */
  queueType?: QueueType | undefined
  /** A function that returns the login, instead of the user and password of the URL. */
  credentials?: Credentials | undefined
  /**
   * Keeps trying while the broker cannot be reached; off by default. {@link Client.consume} does the same while the broker is away again,
   * or its queues have no leaders yet. A broker that answers and refuses is an error at once. The process stays alive meanwhile.
   */
  wait?: boolean | undefined
  /**
   * Ends the client when the broker refuses the login or the virtual host after a connection was lost: `closed` of its consumers
   * rejects, and so does {@link Client.run}. Off by default: the client keeps trying.
   */
  endWhenRefused?: boolean | undefined
  /**
   * Functions around every attempt of all consumers of single messages, see {@link Middleware}; the first is the outermost. None by default.
   */
  middleware?: readonly Middleware[] | undefined
  /** Functions around every publish, see {@link PublishMiddleware}; the first is the outermost. None by default. */
  publishMiddleware?: readonly PublishMiddleware[] | undefined
  /** A signal that stops connecting when it aborts. */
  signal?: AbortSignal | undefined
}

/** What a client is made with, besides its connections. */
interface Given {
  /** The number of the function that returns the login. */
  credentials: number | undefined
  middleware: readonly Middleware[]
  publishMiddleware: readonly PublishMiddleware[]
}

let clientOf: (connected: NativeClient, given: Given) => Client

/**
 * A client of one broker or cluster. It holds two connections, and reconnects each in the background when it is lost.
 *
 * The client itself does not keep the process alive. Its consumers do, and so do calls that wait for an answer.
 */
export class Client {
  readonly #native: NativeClient
  readonly #consumers = new Set<Consumer>()
  readonly #ended: Promise<void>
  #resolveEnded: () => void = () => {}
  #closing: Promise<void> | undefined
  /** Publishes that the broker has not answered yet. */
  #publishing = 0
  #published: () => void = () => {}
  /** The handlers have drained, and nothing can be published any more. */
  #drained = false
  /** The error with which it ended by itself. */
  #refused: Error | undefined
  readonly #options: Given

  private constructor(connected: NativeClient, given: Given) {
    this.#native = connected
    this.#options = given
    this.#ended = new Promise((resolve) => (this.#resolveEnded = resolve))
    dispatcher().opened()
  }

  /**
   * Starts a consumer that calls `handler` with every message. If the handler returns, the message is acknowledged. If it throws, the
   * message is retried (with `dlx: true`), or treated as {@link retryAfter}, {@link park} or {@link defer} says.
   *
   * Resolves when the broker has accepted the consumer, before the first handler begins. Rejects with the error if the broker refuses
   * something, or if the options cannot work; then no message was taken. It never throws. `consume<Order>(…)` sets the type that
   * `message.json()` returns.
   */
  consume<Body = unknown>(options: ConsumerOptions, handler: Handler<Body>): Promise<Consumer>
  /** Starts a consumer that calls `handler` with up to `batch` messages at once, see {@link BatchHandler}. Otherwise as for single messages. */
  consume<Body = unknown>(options: BatchOptions, handler: BatchHandler<Body>): Promise<Consumer>
  consume(options: ConsumerOptions | BatchOptions, handler: Handler | BatchHandler): Promise<Consumer> {
    return rejectOnThrow(() => this.#consume(options, handler))
  }

  #consume(options: ConsumerOptions | BatchOptions, handler: Handler | BatchHandler): Promise<Consumer> {
    const planned = plan(options, handler, this.#options.middleware)
    if (this.#closing !== undefined) return Promise.reject(clientClosed())
    if (planned.signal?.aborted === true) return Promise.reject(planned.signal.reason)
    const listening = new native.ListenerFlag()
    if (planned.onEvent !== undefined) listening.begin()
    const id = dispatcher().number()
    let tries: Connecting | undefined
    const begin = (ticket: number): void => {
      tries = callNative(() => this.#native.subscribe(dispatcher().native, ticket, planned.native, id, listening))
      connecting.add(tries)
    }
    const subscribing = dispatcher().run<Subscription>(begin, { settled: () => void connecting.delete(tries as Connecting) })
    // The first messages and events may arrive before the answer is read.
    const earlyEvents: string[] = []
    dispatcher().subscribe(id, { arrived: () => {}, event: (row) => void earlyEvents.push(row), loopEmpty: () => {} })
    const consuming = subscribing.then(
      (subscription) => {
        const closing = this.#closing !== undefined
        const checkEnd = (): void => callNative(() => this.#native.checkEnd())
        const consumer = consumerOf(planned, { id, subscription, listening, earlyEvents, closing, checkEnd })
        this.#consumers.add(consumer)
        const forget = (): void => void this.#consumers.delete(consumer)
        consumer.closed.then(forget, (error: Error) => {
          forget()
          this.#refused ??= error
          this.#resolveEnded()
        })
        return consumer
      },
      (error: unknown) => {
        dispatcher().unsubscribe(id)
        throw error
      },
    )
    return planned.signal === undefined ? consuming : unlessAborted(consuming, planned.signal, closeWhenMade(consuming, () => tries?.giveUp()))
  }

  /**
   * Publishes a message, and resolves when the broker has confirmed it (publisher confirms).
   *
   * Rejects with {@link UnroutableError} if no queue takes it, and with {@link TooLargeError} or {@link AccessRefusedError} if something
   * must change first: it was not stored then. After {@link NotConfirmedError}, {@link BrokerTimeoutError} or
   * {@link ConnectionLostError} it may have been stored: publish it again. With `delay`: {@link QueueNotFoundError},
   * {@link MismatchError} or {@link StrategyRefusedError} if there is no queue to wait in; the message was not stored. After
   * {@link close}: {@link ClosedError}. It also rejects for options that cannot work; it never throws.
   *
   * Messages without a delay are sent in the order of the calls, even if the calls overlap. While the client closes, handlers may
   * still publish. With `publishMiddleware` the order is that in which the middleware lets them through.
   */
  publish(routingKey: string, body: Body, options: PublishOptions = {}): Promise<void> {
    if (options?.signal === undefined) return this.#publishWithOptions(routingKey, body, options)
    const { signal, ...others } = options
    return rejectOnThrow(() => {
      abortSignal(signal).throwIfAborted()
      return unlessAborted(this.#publishWithOptions(routingKey, body, others), signal)
    })
  }

  #publishWithOptions(routingKey: string, body: Body, options: PublishOptions): Promise<void> {
    return rejectOnThrow(() => {
      if (this.#options.publishMiddleware.length === 0) return this.#publish(routingKey, body, options, this.#drained)
      publishable(options)
      return this.#drained ? Promise.reject(clientClosed()) : this.#publishWithMiddleware(routingKey, body, options)
    })
  }

  /** It counts as a publish from its beginning: what is in a middleware when the client closes is still sent. */
  async #publishWithMiddleware(routingKey: string, body: Body, options: PublishOptions): Promise<void> {
    this.#publishing++
    try {
      const send = (options: PublishOptions): Promise<void> => this.#publish(routingKey, body, options)
      await publishThroughMiddleware(this.#options.publishMiddleware, send, routingKey, body, options)
    } finally {
      this.#publishEnded()
    }
  }

  #publish(routingKey: string, body: Body, options: PublishOptions, isClosed = false): Promise<void> {
    const message = outgoing(routingKey, body, options)
    if (isClosed) return Promise.reject(clientClosed())
    const publishing = dispatcher().run<void>(
      (ticket) => callNative(() => this.#native.publish(dispatcher().native, ticket, message)),
      { settled: () => this.#publishEnded() },
    )
    this.#publishing++
    return publishing
  }

  #publishEnded(): void {
    if (--this.#publishing === 0) this.#published()
  }

  /** The messages parked for the work queue `queue`, in `<queue>.parked`. */
  parked(queue: string): ParkedMessages {
    return parkedOf(this.#native, queue, () => this.#drained)
  }

  /**
   * Whether both connections are open, the consuming and the publishing one, and the broker reads what is published. For a health check; nothing is
   * sent to the broker. During a memory or disk alarm it is `false` once something was published.
   */
  healthy(): boolean {
    return this.trouble() === null
  }

  /** Why the client is not healthy: the error of the last attempt to reconnect, or that the broker reads nothing. `null` if it is. */
  trouble(): string | null {
    return this.#native.trouble()
  }

  /** How often a connection of this client was lost and reconnected. */
  get reconnects(): number {
    return this.#native.reconnects
  }

  /** What the broker said about itself when the client connected. */
  get server(): { product: string; version: string } {
    return { product: this.#native.product, version: this.#native.version }
  }

  /**
   * All metrics of this client in the OpenMetrics text format, which Prometheus reads. Serve them with the content type
   * `application/openmetrics-text; version=1.0.0; charset=utf-8`. The number of parked messages is the one at the previous
   * call.
   */
  metricsText(): string {
    return this.#native.metricsText()
  }

  /**
   * Keeps the process alive until SIGINT or SIGTERM, or until the client is closed. Then it drains every consumer and closes the
   * connections. A second signal ends the process at once. Worker threads get no signals.
   *
   * Rejects with the error if the client has ended by itself, see `endWhenRefused`. Consumers notice that; without consumers it waits
   * for a signal.
   */
  async run(signals: readonly NodeJS.Signals[] = ['SIGINT', 'SIGTERM']): Promise<void> {
    if (!Array.isArray(signals)) throw new InvalidTypeError(`\`signals\` must be an array of names, not ${kind(signals)}`)
    for (const signal of signals as unknown[]) {
      if (typeof signal === 'string' && Object.hasOwn(constants.signals, signal) && !UNCATCHABLE.includes(signal)) continue
      throw new InvalidOptionError(`\`signals\` names no signal that can be heard: ${inspect(signal)}`)
    }
    return this.#run(signals)
  }

  async #run(signals: readonly NodeJS.Signals[]): Promise<void> {
    if (this.#closing !== undefined) throw clientClosed()
    const forget = (): void => signals.forEach((signal) => process.off(signal, onSignal))
    let wasSignalled = false
    const onSignal = (signal: NodeJS.Signals): void => {
      if (wasSignalled) {
        forget()
        process.kill(process.pid, signal)
        return
      }
      wasSignalled = true
      void this.close()
    }
    signals.forEach((signal) => process.on(signal, onSignal))
    dispatcher().hold()
    try {
      await this.#ended
      if (this.#refused !== undefined) {
        await this.close()
        throw this.#refused
      }
    } finally {
      dispatcher().release()
      forget()
    }
  }

  /**
   * Drains every consumer, waits for the confirms of published messages, and closes the connections. It may be called more than once,
   * and from a handler. A handler that awaits it waits for itself; it is abandoned after `drainTimeout`.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  async #close(): Promise<void> {
    try {
      const ends = await Promise.allSettled([...this.#consumers].map((consumer) => consumer.close()))
      for (const end of ends) {
        if (end.status === 'rejected') log('error', 'a consumer did not end as it should', { error: String(end.reason) }, `: ${end.reason}`)
      }
      this.#drained = true
      // Either the broker answers, or the core stops waiting for it. The core ends what waits for a broker in trouble.
      while (this.#publishing > 0) {
        let look: NodeJS.Timeout | undefined
        const troubled = this.trouble() !== null
        const looks = new Promise<void>((resolve) => (look = timer(CLOSE_TIMEOUT, resolve)))
        await Promise.race([new Promise<void>((resolve) => (this.#published = resolve)), looks])
        clearTimeout(look)
        if (troubled && this.trouble() !== null) break
      }
      await dispatcher().run<undefined>((ticket) => this.#native.close(dispatcher().native, ticket))
    } finally {
      // The function may hold the client, which holds it.
      if (this.#options.credentials !== undefined) dispatcher().forget(this.#options.credentials)
      this.#drained = true
      this.#resolveEnded()
      dispatcher().closed()
    }
  }

  /** Like {@link close}. */
  declare readonly [Symbol.asyncDispose]: () => Promise<void>

  static {
    disposable(this)
    clientOf = (connected, given) => new Client(connected, given)
  }
}

/** Signals that no process can handle. */
const UNCATCHABLE = ['SIGKILL', 'SIGSTOP']
/** How long `close()` waits for publishes while the broker is in trouble, in milliseconds. */
const CLOSE_TIMEOUT = 2_000
const KNOWN = ['appVersion', 'queueType', 'credentials', 'wait', 'endWhenRefused', 'middleware', 'publishMiddleware', 'signal']

/** Connections and subscriptions that are being made. Garbage collection would stop them. */
const connecting = new Set<Connecting>()

/** One URL, or several in the form that the native half reads. */
function urlText(url: unknown): string {
  return Array.isArray(url) ? Array.from(url as unknown[], (one) => string('url', one)).join(',') : string('url', url)
}

/**
 * Connects to the broker at `url`, such as `amqp://user:password@host:5672/vhost`. Without it, it uses the environment variable
 * `RETRYRMQ_URL`, and without that `amqp://localhost`. A URL may have several hosts of a cluster
 * (`amqp://user:password@one,two,three/vhost`), and `url` may be an array of URLs; the client uses any host that answers.
 *
 * Rejects with {@link UnreachableError}, {@link AuthenticationFailedError}, {@link VhostNotFoundError}, {@link TlsFailedError} or
 * {@link BrokerTimeoutError}, and for an unusable URL or option. It never throws. Once connected, the client reconnects in the
 * background.
 *
 *     const rmq = await connect('amqp://localhost')
 *     await rmq.consume({ queue: 'orders', dlx: true }, async (msg) => { … })
 *     await rmq.run()
 */
export function connect(url?: string | readonly string[], options: ConnectOptions = {}): Promise<Client> {
  return rejectOnThrow(() => connectTo(url, options))
}

function connectTo(url: string | readonly string[] | undefined, options: ConnectOptions): Promise<Client> {
  const address = urlText(url === undefined ? process.env['RETRYRMQ_URL']?.trim() || 'amqp://localhost' : url)
  if (typeof options !== 'object' || options === null) {
    throw new InvalidTypeError(`the options of connect() must be an object, not ${kind(options)}`)
  }
  onlyKnown(options, KNOWN)
  const { appVersion = '', queueType, credentials, wait = false, endWhenRefused = false, signal } = options
  string('appVersion', appVersion)
  if (queueType !== undefined) string('queueType', queueType)
  flag('wait', wait)
  flag('endWhenRefused', endWhenRefused)
  const middleware = functions('middleware', options.middleware)
  const publishMiddleware = functions('publishMiddleware', options.publishMiddleware)
  if (signal !== undefined) abortSignal(signal)
  callNative(() => native.checkUrl(address))
  if (signal?.aborted === true) return Promise.reject(signal.reason)
  const asks = credentials === undefined ? undefined : registerCredentials(credentials)
  let tries: Connecting | undefined
  const begin = (ticket: number): void => {
    const { native: own } = dispatcher()
    try {
      tries = callNative(() =>
        native.connect(own, ticket, address, appVersion, queueType ?? null, wait, endWhenRefused, asks ?? null),
      )
    } catch (error) {
      if (asks !== undefined) dispatcher().forget(asks)
      throw error
    }
    connecting.add(tries)
  }
  const connected = dispatcher()
    .run<NativeClient>(begin, { settled: () => void connecting.delete(tries as Connecting) })
    .then((native) => clientOf(native, { credentials: asks, middleware, publishMiddleware }))
  return signal === undefined ? connected : unlessAborted(connected, signal, closeWhenMade(connected, () => tries?.giveUp()))
}

/**
 * Makes what was thrown at the call a rejection, so that one way of catching errors catches all. Not an async function: that would resolve
 * later than the promise of `call`, and a handler could begin first.
 */
function rejectOnThrow<T>(call: () => Promise<T>): Promise<T> {
  try {
    return call()
  } catch (error) {
    return Promise.reject(error)
  }
}

/** Gives up what is being made, and closes what is made all the same. */
function closeWhenMade<T extends { close(): Promise<void> }>(making: Promise<T>, giveUp: () => void): () => void {
  return () => {
    giveUp()
    making.then(
      (made) => made.close(),
      () => {},
    )
  }
}

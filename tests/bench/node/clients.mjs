// Each client as its own documentation has it: a consumer with a prefetch, and a handler that says when it is done with a
// message. A case differs in what the handler does, and in how many messages it may hold.

import { PREFETCH } from './measure.mjs'

/** amqplib: `handle(message, ack, publish, channel)`; a channel of its own for confirmed publishing. */
export async function amqplib(url, queue, handle, prefetch = PREFETCH) {
  const { connect } = await import('amqplib')
  const connection = await connect(url)
  const channel = await connection.createChannel()
  const publishing = await connection.createConfirmChannel()
  await channel.prefetch(prefetch)
  const publish = (to, body, options) =>
    new Promise((resolve, reject) => {
      publishing.publish('', to, body, { mandatory: true, ...options }, (error) => (error ? reject(error) : resolve()))
    })
  await channel.consume(queue, (message) => handle(message, () => channel.ack(message), publish, channel))
}

/** rabbitmq-client acknowledges when the handler's promise resolves. */
export async function rabbitmqClient(url, queue, handle, prefetch = PREFETCH) {
  const { Connection } = await import('rabbitmq-client')
  const connection = new Connection(url)
  const publisher = connection.createPublisher({ confirm: true })
  const publish = (to, body, options) => publisher.send({ routingKey: to, mandatory: true, ...options }, body)
  const options = { queue, queueOptions: { passive: true }, qos: { prefetchCount: prefetch } }
  connection.createConsumer(options, (message) => handle(message, publish))
}

/** Rascal: `handle(message, content, ackOrNack)`. */
export async function rascal(url, queue, handle, prefetch = PREFETCH) {
  const { default: Rascal } = await import('rascal')
  const vhost = decodeURIComponent(new URL(url).pathname.slice(1)) || '/'
  const config = {
    vhosts: {
      [vhost]: {
        connection: { url },
        queues: { [queue]: { assert: false, check: true } },
        subscriptions: { work: { queue, prefetch } },
      },
    },
  }
  const broker = await Rascal.BrokerAsPromised.create(Rascal.withDefaultConfig(config))
  broker.on('error', (error) => console.error(error))
  const subscription = await broker.subscribe('work')
  subscription.on('message', handle).on('error', (error) => console.error(error))
}

/** Ours, with everything on. */
export async function retryrmq(url, queue, options, handle) {
  const { connect, setLogger } = await import('retryrmq')
  setLogger(false)
  const rmq = await connect(url)
  await rmq.consume({ queue, dlx: true, prefetch: PREFETCH, keepAlive: true, ...options }, handle)
}

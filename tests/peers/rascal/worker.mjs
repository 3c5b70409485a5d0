// Rascal with the recovery that its documentation recommends: republish with a delay, and dead-letter after the last retry.

import Rascal from 'rascal'

import { DELAY_MS, handle, PREFETCH, QUEUE, RETRIES, URL } from './order.mjs'

const DEAD = `${QUEUE}.dead`
const quorum = { 'x-queue-type': 'quorum' }
const vhost = decodeURIComponent(new globalThis.URL(URL).pathname.slice(1))
const config = {
  vhosts: {
    [vhost]: {
      connection: { url: URL },
      queues: {
        [QUEUE]: {
          options: { durable: true, arguments: { ...quorum, 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': DEAD } },
        },
        [DEAD]: { options: { durable: true, arguments: quorum } },
      },
      subscriptions: { work: { queue: QUEUE, prefetch: PREFETCH } },
    },
  },
}
const broker = await Rascal.BrokerAsPromised.create(Rascal.withDefaultConfig(config))
broker.on('error', (error) => console.error(error.message))
const subscription = await broker.subscribe('work')
subscription.on('error', (error) => console.error(error.message))
subscription.on('message', async (message, content, ackOrNack) => {
  try {
    await handle(message.content)
    ackOrNack()
  } catch (error) {
    ackOrNack(error, [{ strategy: 'republish', defer: DELAY_MS, attempts: RETRIES }, { strategy: 'nack' }])
  }
})

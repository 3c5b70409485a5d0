// A requeue loop: what most tutorials show. A failed message is given back at once.

import { connect } from 'amqplib'

import { handle, PREFETCH, QUEUE, URL } from './order.mjs'

const connection = await connect(URL)
connection.on('close', () => process.exit(1))
const channel = await connection.createChannel()
await channel.assertQueue(QUEUE, { durable: true, arguments: { 'x-queue-type': 'quorum' } })
await channel.prefetch(PREFETCH)
await channel.consume(QUEUE, async (message) => {
  try {
    await handle(message.content)
    channel.ack(message)
  } catch (error) {
    console.error(error.message)
    channel.nack(message, false, true)
  }
})

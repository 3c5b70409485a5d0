// Publishes with delays, with amqplib alone: publisher.mjs EXCHANGE plugin|serve [DELAY_MS…]
import amqplib from 'amqplib'

const [exchange, by, ...delays] = process.argv.slice(2)
const connection = await amqplib.connect(process.env.RETRYRMQ_URL)
const channel = await connection.createConfirmChannel()
if (by === 'plugin') {
  await channel.assertExchange(exchange, 'x-delayed-message', { durable: true, arguments: { 'x-delayed-type': 'topic' } })
} else {
  await channel.assertExchange(exchange, 'topic', { durable: true })
}
for (const delay of delays) {
  const options = { messageId: `node-${delay}`, persistent: true, headers: { 'x-delay': Number(delay) } }
  channel.publish(exchange, `order.${delay}`, Buffer.from(delay), options)
}
await channel.waitForConfirms()
await connection.close()

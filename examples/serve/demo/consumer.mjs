// Consumes `billing` with amqplib alone, and rejects at random.
import amqplib from 'amqplib'

const connection = await amqplib.connect(process.env.RETRYRMQ_URL)
const channel = await connection.createChannel()
await channel.prefetch(10)
await channel.consume('billing', (message) => {
  const { messageId, headers } = message.properties
  const attempt = Number(headers?.['x-retry-count'] ?? 0) + 1
  const accepted = Math.random() < 0.4
  if (accepted) channel.ack(message)
  else channel.reject(message, false)
  console.log(`${messageId.padEnd(12)} attempt ${attempt}  ${accepted ? 'done' : 'rejected'}`)
})
for (const sign of ['SIGINT', 'SIGTERM']) process.on(sign, () => connection.close().then(() => process.exit(0)))

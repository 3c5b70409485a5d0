// A handler that takes the memory of its message away: its body, what its headers hold, and what it can reach through them.

import { connect } from 'retryrmq'

const [queue] = process.argv.slice(2)
const rmq = await connect()
const total = 40
for (let n = 0; n < total; n++) {
  const body = `message ${n}`.padEnd(n % 2 === 0 ? 12 : 5000)
  await rmq.publish(queue, body, { headers: { n, bytes: Buffer.from(`bytes ${n}`) }, messageId: `id ${n}` })
}
const seen = []
let wrong = 0
const consumer = await rmq.consume({ queue, dlx: true }, async (msg) => {
  msg.body.buffer.transfer()
  msg.headers.bytes.buffer.transfer()
  // Others of its batch run in between.
  await new Promise((resolve) => setImmediate(resolve))
  const { n } = msg.headers
  if (msg.messageId !== `id ${n}` || msg.properties.messageId !== `id ${n}` || msg.attempt !== 1) wrong++
  seen.push(n)
})
while (consumer.stats().acked < total && consumer.stats().failed === 0) await new Promise((resolve) => setTimeout(resolve, 10))
console.log(`handled ${new Set(seen).size}, failed ${consumer.stats().failed}, wrong ${wrong}`)
await rmq.close()

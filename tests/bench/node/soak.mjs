// The consumer of a soak in Node: prints the number of each message that it has handled.

import { connect } from 'retryrmq'

const rmq = await connect()

await rmq.consume({ queue: process.argv[2], dlx: true, retry: 'fixed(200ms, retries=5)' }, async (msg) => {
  const number = Number(msg.text())
  if (number % 997 === 0 || (number % 3 === 0 && msg.attempt === 1)) throw new Error(`${number} does not work`)
  process.stdout.write(`${number}\n`)
})

await rmq.run()

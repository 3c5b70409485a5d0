// A real consumer while timers are fake, on the broker at RETRYRMQ_URL, in Jest and in Vitest.

import { connect } from 'retryrmq'

const fake = globalThis.vi ?? (await import('@jest/globals')).jest

test('an order is retried while timers are fake', async () => {
  fake.useFakeTimers()
  const rmq = await connect()
  const attempt = await new Promise((resolve) => {
    const options = { queue: 'example.fakes', dlx: true, retry: 'fixed(100ms, retries=3)' }
    const consuming = rmq.consume(options, (msg) => {
      if (msg.attempt === 1) throw new Error('the warehouse is closed')
      resolve(msg.attempt)
    })
    void consuming.then(() => rmq.publish('example.fakes', 'order-7'))
  })
  await rmq.close()
  expect(attempt).toBe(2)
})

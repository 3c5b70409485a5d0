// Endpoints of a service tested without a broker: `node --test dist/testing-endpoints.test.js`.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import fastify, { type FastifyInstance } from 'fastify'
import { UnreachableError, setLogger, type Client } from 'retryrmq'
import { FakeClient } from 'retryrmq/testing'

setLogger(false)

// The service: it gets its client from whoever starts it.
async function service(rmq: Client): Promise<FastifyInstance> {
  const app = fastify()
  app.post<{ Body: { id: number } }>('/orders', async (request, reply) => {
    try {
      await rmq.publish('orders', JSON.stringify(request.body), { contentType: 'application/json' })
    } catch {
      return reply.code(503).send({ error: 'try again later' })
    }
    return reply.code(202).send()
  })
  await rmq.consume<{ id: number }>({ queue: 'orders', dlx: true, retry: 'fixed(1m, retries=2)' }, async (msg) => {
    if (msg.attempt === 1) throw new Error('the warehouse does not answer')
    await rmq.publish('shipped', String(msg.json().id))
  })
  app.addHook('onClose', () => rmq.close())
  return app
}

test('an accepted order is published', async () => {
  const fake = new FakeClient()
  const app = await service(fake)
  const answer = await app.inject({ method: 'POST', url: '/orders', payload: { id: 7 } })
  assert.equal(answer.statusCode, 202)
  assert.equal(fake.published.length, 1)
  const { message } = fake.published[0]!
  assert.deepEqual([message.routingKey, message.json(), message.properties.contentType], ['orders', { id: 7 }, 'application/json'])
  await app.close()
})

test('without a broker the client shall try again', async () => {
  const fake = new FakeClient()
  const app = await service(fake)
  fake.publishError = new UnreachableError('no broker at 10.0.0.7')
  const answer = await app.inject({ method: 'POST', url: '/orders', payload: { id: 7 } })
  assert.deepEqual([answer.statusCode, answer.json()], [503, { error: 'try again later' }])
  await app.close()
})

test('an order is shipped at the second attempt', async () => {
  const fake = new FakeClient()
  const app = await service(fake)
  const { attempts, elapsed } = await fake.deliver('orders', '{"id": 7}')
  assert.deepEqual(
    attempts.map((attempt) => attempt.became),
    ['retried', 'acked'],
  )
  assert.equal(elapsed, 60_000)
  assert.equal(fake.published[0]?.message.text(), '7')
  await app.close()
})

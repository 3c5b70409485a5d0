// What a missing work queue is made with.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'

import { connect as connectPlainly } from 'amqplib'
import { setLogger } from 'retryrmq'

import { URL_, client, deferred, manage, test, until, vhost } from './broker.mjs'

const names = async (begin) => {
  const all = await manage('GET', `queues/${vhost}?columns=name`)
  return all.map(({ name }) => name).filter((name) => name.startsWith(begin))
}

/** The name of a queue that is not there; it is gone with the test. */
function missing(t) {
  const name = `node-${randomUUID()}`
  t.after(async () => {
    for (const queue of await names(name)) await manage('DELETE', `queues/${vhost}/${encodeURIComponent(queue)}`)
  })
  return name
}

/** Whether another client may declare the queue with these arguments. */
async function declares(name, args) {
  const plain = await connectPlainly(URL_)
  try {
    const channel = await plain.createChannel()
    channel.on('error', () => {}) // it rejects as well
    await channel.assertQueue(name, { durable: true, arguments: args })
    return true
  } catch (error) {
    assert.equal(error.code, 406, error)
    return false
  } finally {
    await plain.close()
  }
}

for (const [said, same, other] of [
  [{}, {}, { 'x-max-priority': 10 }],
  [{ 'x-max-priority': 10, 'x-single-active-consumer': true }, undefined, { 'x-max-priority': 10 }],
  [{ 'x-queue-type': 'quorum', 'x-max-length': 100_000n }, { 'x-queue-type': 'quorum', 'x-max-length': 100_000 }, {}],
]) {
  test(`a missing queue is made with exactly ${Object.keys(said).join(' and ') || 'no arguments'}`, async (t) => {
    const [rmq, name, handled] = [await client(t), missing(t), deferred()]
    await rmq.consume({ queue: name, dlx: true, retry: 'fixed(50ms)', workQueue: said }, (msg) => {
      if (msg.attempt === 1) throw new Error('once more')
      handled.resolve(msg.text())
    })
    assert.equal(await declares(name, same ?? said), true)
    assert.equal(await declares(name, other), false)
    await rmq.publish(name, 'x')
    assert.equal(await handled.promise, 'x')
  })
}

test('a type keeps what the broker gives up on', async (t) => {
  const [rmq, name] = [await client(t), missing(t)]
  await rmq.consume({ queue: name, dlx: true, workQueue: 'classic' }, () => {})
  const made = await manage('GET', `queues/${vhost}/${name}`)
  assert.deepEqual(made.arguments, {
    'x-queue-type': 'classic',
    'x-dead-letter-exchange': '',
    'x-dead-letter-routing-key': `${name}.parked`,
  })
})

test('one that is said to exist is never made, and nothing for it', async (t) => {
  const [rmq, name] = [await client(t), missing(t)]
  const consume = () => rmq.consume({ queue: name, dlx: true, workQueue: 'existing' }, () => {})
  await assert.rejects(consume(), {
    name: 'QueueNotFoundError',
    message: new RegExp(`^the queue \`${name}\` does not exist, and \`workQueue\` is \`existing\`: declare it, .* with \`workQueue\` as`),
  })
  assert.deepEqual(await names(name), [])
  assert.equal(await declares(name, {}), true)
  await consume()
  assert.ok((await names(name)).includes(`${name}.parked`))
})

test('one that is deleted is not made again, unless that was asked for', async (t) => {
  const [rmq, name, handled] = [await client(t), missing(t), deferred()]
  const [lines, quiet] = [[], () => {}]
  setLogger({ error: (line) => lines.push(line), warn: quiet, info: quiet, debug: quiet })
  t.after(() => setLogger(false))
  assert.equal(await declares(name, {}), true)
  await rmq.consume({ queue: name, dlx: true }, (msg) => handled.resolve(msg.text()))
  await manage('DELETE', `queues/${vhost}/${name}`)
  await until('it is missed', () => lines.some((line) => line.includes('cannot consume')))
  assert.ok(!(await names(name)).includes(name))
  // Its owner makes it anew, with other arguments than ours.
  assert.equal(await declares(name, { 'x-max-priority': 3 }), true)
  await rmq.publish(name, 'x')
  assert.equal(await handled.promise, 'x')
})

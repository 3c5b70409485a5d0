// Several hosts, brokers that come later, and logins that are refused later.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { connect, park } from 'retryrmq'
import { liveObjects } from 'retryrmq/testing'

import { URL_, client, program, queue, test, until } from './broker.mjs'
import { at, broker, freePort, proxy, user } from './network.mjs'

test('any of several hosts will do', async (t) => {
  const dead = `127.0.0.1:${await freePort(t)}`
  for (const urls of [at(`${dead},${broker.host}`), `${at(dead)}, ${URL_}`, [at(dead), URL_]]) {
    // In any order.
    for (let n = 0; n < 3; n++) {
      const rmq = await connect(urls)
      assert.equal(rmq.healthy(), true)
      await rmq.close()
    }
  }
  await assert.rejects(connect([at(dead), at(dead)]), { code: 'unreachable' })
  // One that refuses says more than one that is away.
  await assert.rejects(connect([at(dead), at(broker.host, 'guest:sesame')]), { code: 'authentication_failed' })
})

test('a password in a file is read at every connection', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'retryrmq-'))
  t.after(() => rm(folder, { recursive: true }))
  const [way, who, secret] = [await proxy(t), await user(t), join(folder, 'password')]
  await writeFile(secret, 'old\n')
  const rmq = await connect(`${at(way.place, `${who.name}:unused`)}?passwordfile=${encodeURIComponent(secret)}`)
  t.after(() => rmq.close())
  assert.equal(rmq.healthy(), true)
  await who.setPassword('new')
  await writeFile(secret, 'new\n')
  way.cut()
  await until('both connections are back', () => rmq.reconnects >= 2 && rmq.healthy())
})

test('a broker that is not there yet is waited for', async (t) => {
  const port = await freePort(t)
  await assert.rejects(connect(at(`127.0.0.1:${port}`)), { code: 'unreachable' })
  let connected = false
  const connecting = connect(at(`127.0.0.1:${port}`), { wait: true }).finally(() => (connected = true))
  await new Promise((resolve) => setTimeout(resolve, 700))
  assert.equal(connected, false)
  await proxy(t, port)
  const rmq = await connecting
  assert.deepEqual([rmq.healthy(), rmq.trouble()], [true, null])
  await rmq.close()
  await assert.rejects(connect(at(broker.host, 'guest:sesame'), { wait: true }), { code: 'authentication_failed' })
})

test('a client that waits, waits to consume as well', async (t) => {
  const [port, name] = [await freePort(t), await queue(t)]
  const way = await proxy(t, port)
  const rmq = await connect(at(way.place), { wait: true })
  way.close()
  await until('it is down', () => !rmq.healthy())
  const before = liveObjects().operations ?? 0
  const controller = new AbortController()
  const handled = []
  const consuming = rmq.consume({ queue: name, dlx: true }, (msg) => void handled.push(msg.text()))
  const given = rmq.consume({ queue: name, dlx: true, signal: controller.signal }, () => {})
  setTimeout(() => controller.abort(new Error('changed my mind')), 700)
  await assert.rejects(given, { message: 'changed my mind' })
  await until('one of them tries no more', () => (liveObjects().operations ?? 0) <= before + 1)
  const again = await proxy(t, port)
  await consuming
  const other = await client(t)
  await other.publish(name, 'x')
  await until('it is handled', () => handled.length > 0)
  // Nor does it wait for longer than its client lives.
  again.close()
  await until('it is down again', () => !rmq.healthy())
  const third = assert.rejects(rmq.consume({ queue: name, dlx: true }, () => {}), { code: 'closed' })
  await rmq.close()
  await third
})

test('waiting that is given up ends', async (t) => {
  const before = liveObjects().operations ?? 0
  const controller = new AbortController()
  const connecting = connect(at(`127.0.0.1:${await freePort(t)}`), { wait: true, signal: controller.signal })
  setTimeout(() => controller.abort(new Error('changed my mind')), 100)
  await assert.rejects(connecting, { message: 'changed my mind' })
  await until('nobody tries any more', () => (liveObjects().operations ?? 0) <= before)
})

test('a signal that aborts after connecting takes nothing back', async (t) => {
  const [name, controller] = [await queue(t), new AbortController()]
  let rmq
  try {
    rmq = await connect(URL_, { signal: controller.signal })
  } finally {
    controller.abort()
  }
  // An end would wait for the first.
  for (const body of 'xy') await rmq.publish(name, body)
  await rmq.close()
})

test('waiting keeps the process alive until Ctrl-C', async (t) => {
  const { signal } = await program('wait_for_broker', [at(`127.0.0.1:${await freePort(t)}`)], async (child, says) => {
    await says('waiting\nwaiting')
    child.kill('SIGINT')
  })
  assert.equal(signal, 'SIGINT')
})

test('waiting ends with its thread', async (t) => {
  const { code, text, errors } = await program('wait_for_broker', [at(`127.0.0.1:${await freePort(t)}`), 'thread'])
  assert.deepEqual([code, errors], [0, ''])
  assert.match(text, /gone\n$/)
})

test('health tells why it is not well', async (t) => {
  const way = await proxy(t)
  const rmq = await connect(at(way.place))
  assert.deepEqual([rmq.healthy(), rmq.trouble()], [true, null])
  way.close()
  await until('it is down', () => !rmq.healthy())
  await until('it is known why', () => /no broker answers/.test(rmq.trouble()))
  await rmq.close()
  assert.equal(rmq.healthy(), false)
  assert.match(rmq.trouble(), /closed/)
})

test('metrics tell of connections, handlers and what is parked', async (t) => {
  const name = await queue(t)
  const rmq = await connect(URL_)
  await rmq.consume({ queue: name, dlx: true }, () => park('it is tested'))
  await rmq.publish(name, 'x')
  for (const sample of [
    'retryrmq_connection_up{purpose="consume"} 1',
    'retryrmq_connection_up{purpose="publish"} 1',
    `retryrmq_handler_seconds_count{queue="${name}"} 1`,
    `retryrmq_parked_depth{queue="${name}"} 1`,
  ]) {
    await until(sample, () => rmq.metricsText().includes(sample))
  }
  await rmq.close()
  assert.ok(rmq.metricsText().includes('retryrmq_connection_up{purpose="consume"} 0'))
})

test('a password that was changed is told', async (t) => {
  const [way, who, name] = [await proxy(t), await user(t), await queue(t)]
  const rmq = await connect(at(way.place, `${who.name}:old`))
  t.after(() => rmq.close())
  const consumer = await rmq.consume({ queue: name, dlx: true }, () => {})
  const refused = once(consumer, 'login_refused')
  await who.setPassword('new')
  way.cut()
  const [event] = await refused
  assert.deepEqual(Object.keys(event).sort(), ['error', 'name', 'queue'])
  assert.equal(event.queue, name)
  await until('it is known why', () => rmq.trouble()?.includes(who.name))
  for (const text of [event.error, rmq.trouble()]) assert.ok(text.includes(who.name) && !text.includes('old'), text)
  await who.setPassword('old')
  await until('it is back', () => rmq.healthy())
})

for (const mode of ['run', 'closed']) {
  test(`a client may end when it is refused (${mode})`, async (t) => {
    const [way, who, name] = [await proxy(t), await user(t), await queue(t)]
    const rmq = await connect(at(way.place, `${who.name}:old`), { endWhenRefused: true })
    const consumer = await rmq.consume({ queue: name, dlx: true }, () => {})
    const ending = mode === 'run' ? rmq.run([]) : consumer.closed
    await who.setPassword('new')
    way.cut()
    await assert.rejects(ending, (error) => error.code === 'authentication_failed' && error.message.includes(who.name))
    await assert.rejects(consumer.closed, { name: 'AuthenticationFailedError' })
    await consumer.close()
    await rmq.close()
  })
}

test('a consumer that is closed has come to a good end', async (t) => {
  const rmq = await client(t, { endWhenRefused: true })
  const consumer = await rmq.consume({ queue: await queue(t), dlx: true }, () => {})
  await consumer.close()
  assert.equal(await consumer.closed, undefined)
})

// The ends of processes and threads.

import assert from 'node:assert/strict'

import { URL_, client, program, queue, test, until } from './broker.mjs'
import { at, proxy, user } from './network.mjs'

async function publish(t, name, count) {
  const rmq = await client(t)
  await Promise.all([...Array(count).keys()].map((n) => rmq.publish(name, String(n + 1))))
  return rmq
}

/** Handles what is in the queue until it was enough; the texts of all there was. */
async function rest(rmq, name, enough) {
  const seen = new Set()
  await rmq.consume({ queue: name, dlx: true }, (msg) => void seen.add(msg.text()))
  await until('what is left has come', () => enough(seen))
  return seen
}

for (const how of ['as it is', 'ref']) {
  test(`a running consumer keeps the process alive (${how})`, async (t) => {
    const name = await queue(t)
    const rmq = await client(t)
    const { signal } = await program('idle', [name, how], async (child, says) => {
      await says('consuming')
      // Idle in between.
      for (const text of ['one', 'two', 'three']) {
        await rmq.publish(name, text)
        await says(`handled ${text}`)
      }
      child.kill('SIGTERM')
    })
    assert.equal(signal, 'SIGTERM')
  })
}

for (const how of ['keepAlive', 'unref']) {
  test(`unless it is not to (${how})`, async (t) => {
    const { code, text, errors } = await program('idle', [await queue(t), how])
    assert.deepEqual([code, errors, text], [0, '', how === 'unref' ? 'true\nconsuming\nbye\n' : 'consuming\nbye\n'])
  })
}

for (const [how, ended] of [
  ['stop', 'stopped'],
  ['close', 'closed'],
]) {
  test(`a consumer at its end keeps no process alive (${how})`, async (t) => {
    const { code, text, errors } = await program('idle', [await queue(t), how])
    assert.deepEqual([code, errors, text], [0, '', `consuming\n${ended}\nbye\n`])
  })
}

test('a consumer that ended by itself keeps no process alive', async (t) => {
  const [way, who, name] = [await proxy(t), await user(t), await queue(t)]
  const { code, text, errors } = await program('login_refused', [at(way.place, `${who.name}:old`), name], async (_, says) => {
    await says('consuming')
    await who.setPassword('new')
    way.cut()
  })
  assert.deepEqual([code, errors], [0, ''])
  assert.match(text, /^consuming\n.*refuses the user/)
})

for (const thread of [[], ['thread']]) {
  const where = thread.length === 0 ? '' : ', on a thread'
  for (const type of ['quorum', 'classic']) {
    test(`what was handled is settled before the process ends (${type}${where})`, async (t) => {
      const [way, name] = [await proxy(t), await queue(t, type)]
      const rmq = await client(t)
      const { code, errors } = await program('unref', ['succeeds', at(way.place), name, '20', ...thread], async (_, says) => {
        await says('consuming')
        // Whoever is gone before the broker has answered has not settled anything.
        way.late = 300
        for (let n = 0; n < 20; n++) await rmq.publish(name, String(n))
      })
      assert.deepEqual([code, errors], [0, ''])
      await rmq.publish(name, 'last')
      assert.deepEqual([...(await rest(rmq, name, (seen) => seen.has('last')))], ['last'])
    })

    test(`a message that failed waits before the process ends (${type}${where})`, async (t) => {
      const name = await queue(t, type)
      const rmq = await publish(t, name, 1)
      const { code, errors } = await program('unref', ['fails', URL_, name, '1', ...thread])
      assert.deepEqual([code, errors], [0, ''])
      const attempts = []
      const consumer = await rmq.consume({ queue: name, dlx: true }, (msg) => void attempts.push(`${msg.text()}: ${msg.attempt}`))
      await until('it comes again', () => attempts.length > 0)
      await rmq.publish(name, 'last')
      await until('the last one came', () => attempts.includes('last: 1'))
      await consumer.close()
      assert.deepEqual(attempts, ['1: 2', 'last: 1'])
    })
  }

  test(`what runs may finish before the process ends${where}`, async (t) => {
    const name = await queue(t)
    const rmq = await publish(t, name, 1)
    const { code, errors, text } = await program('unref', ['finishes', URL_, name, '1', ...thread])
    assert.deepEqual([code, errors, text], [0, '', 'consuming\nfinished\n'])
    await rmq.publish(name, 'last')
    assert.deepEqual([...(await rest(rmq, name, (seen) => seen.has('last')))], ['last'])
  })

  test(`what is published is confirmed before the process ends${where}`, async (t) => {
    const [name, results] = [await queue(t), await queue(t)]
    const rmq = await publish(t, name, 1)
    const { code, errors } = await program('unref', ['publishes', URL_, name, results, ...thread])
    assert.deepEqual([code, errors], [0, ''])
    assert.deepEqual([...(await rest(rmq, results, (seen) => seen.size > 0))], ['1'])
  })
}

test('run ends with a signal, and drains', async (t) => {
  const name = await queue(t)
  await publish(t, name, 1)
  const { code, text, errors } = await program('service', [name], async (child, says) => {
    await says('began 1')
    await says('running')
    child.kill('SIGTERM')
  })
  assert.deepEqual([code, errors], [0, ''])
  assert.match(text.replace('running\n', ''), /began 1\nended 1\ndrained\n/)
})

test('a handler that drains after a signal may still publish', async (t) => {
  const [name, results] = [await queue(t), await queue(t)]
  const rmq = await publish(t, name, 1)
  const { code, text, errors } = await program('publish_at_end', [name, results], async (child, says) => {
    await says('began')
    await says('running')
    child.kill('SIGTERM')
  })
  assert.deepEqual([code, errors], [0, ''])
  assert.match(text, /published at attempt 1\ndrained\n/)
  assert.deepEqual([...(await rest(rmq, results, (seen) => seen.size >= 1))], ['result of 1'])
})

test('a second signal ends at once', async (t) => {
  const name = await queue(t)
  await publish(t, name, 1)
  const { signal, text } = await program('service', [name, '30000'], async (child, says) => {
    await says('began 1')
    await says('running')
    child.kill('SIGINT')
    child.kill('SIGTERM')
  })
  assert.ok(['SIGINT', 'SIGTERM'].includes(signal), signal)
  assert.doesNotMatch(text, /drained/)
})

test('process.exit in a handler loses nothing', async (t) => {
  const name = await queue(t)
  const rmq = await publish(t, name, 10)
  const { code, text, errors } = await program('process_exit', [name])
  assert.deepEqual([code, errors], [7, ''])
  const handled = text.trim().split('\n')
  const all = [...Array(10).keys()].map((n) => String(n + 1))
  // Which ones come again depends on what was acknowledged by then; the one whose handler ended the process does.
  await rest(rmq, name, (seen) => seen.has('3') && all.every((n) => seen.has(n) || handled.includes(n)))
})

for (const mode of ['main-too', 'threads-only']) {
  test(`threads come and go (${mode})`, async (t) => {
    const name = await queue(t)
    const rmq = await publish(t, name, 400)
    const { code, text, errors } = await program('worker_threads', [name, mode])
    assert.deepEqual([code, errors], [0, ''])
    assert.match(text, /all threads ended/)
    await rmq.publish(name, 'last')
    await rest(rmq, name, (seen) => seen.size >= 200 && seen.has('last'))
  })
}

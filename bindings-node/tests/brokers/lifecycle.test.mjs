// The ends of processes and threads.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { client, program, queue, until } from './broker.mjs'

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

test('an idle consumer does not keep the process alive', async (t) => {
  const { code, text, errors } = await program('idle', [await queue(t)])
  assert.deepEqual([code, errors], [0, ''])
  assert.match(text, /consuming\nbye/)
})

test('unless it is asked to', async (t) => {
  const { signal } = await program('idle', [await queue(t), 'keepAlive'], async (child, says) => {
    await says('consuming')
    await new Promise((resolve) => setTimeout(resolve, 500))
    assert.equal(child.exitCode, null)
    child.kill('SIGTERM')
  })
  assert.equal(signal, 'SIGTERM')
})

test('stopping is waited for', async (t) => {
  const { code, text } = await program('idle', [await queue(t), 'stop'])
  assert.equal(code, 0)
  assert.match(text, /consuming\nstopped\nbye/)
})

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
  const { code, text, errors } = await program('publishes', [name, results], async (child, says) => {
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
  const { code, text, errors } = await program('exits', [name])
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
    const { code, text, errors } = await program('threads', [name, mode])
    assert.deepEqual([code, errors], [0, ''])
    assert.match(text, /all threads ended/)
    await rmq.publish(name, 'last')
    await rest(rmq, name, (seen) => seen.size >= 200 && seen.has('last'))
  })
}

// What test runners do and look for: fake timers, and handles that stay open.

import assert from 'node:assert/strict'

import { program, queue, test } from './broker.mjs'

for (const kind of ['sinon', 'node:test']) {
  // Node has setImmediate among its own since version 20.
  const skip = kind === 'node:test' && Number(process.versions.node.split('.')[0]) < 20
  test(`attempts run while timers are fake (${kind})`, { skip }, async (t) => {
    const { code, text, errors } = await program('fake_timers', [await queue(t), kind], undefined, ['--no-warnings'])
    assert.deepEqual([code, errors], [0, ''])
    assert.equal(text, 'retried retried\n')
  })
}

test('nothing is left after everything was closed', async (t) => {
  const { code, signal, text, errors } = await program('open_handles', [await queue(t), 'amqp://127.0.0.1:1'])
  assert.deepEqual([code, signal, errors], [0, null, ''], text)
  const round = 'unreachable\nclosed, listeners: 0\n'
  assert.equal(text, `begun\n${round}${round}left: \n`)
})

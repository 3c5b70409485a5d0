// The function that returns the login, and its calls that never end.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'

const require = createRequire(import.meta.url)
const inside = (file) => require(path.join(path.dirname(require.resolve('retryrmq')), file))
const { asking } = inside('credentials.js')
const own = inside('bridge.js').bridge()

test('calls that hang are no more than eight', async () => {
  const [hanging, refused, answered] = [[], [], []]
  own.native = {
    answer: (question) => answered.push(question),
    refuse: (question, why) => refused.push([question, why]),
  }
  let ask
  own.asks = ({ question }) => (ask = question)
  asking(() => new Promise((resolve) => hanging.push(resolve)))
  for (let question = 0; question < 10; question++) ask(question)
  const why = '8 calls of it have not ended; have it give up after 20 seconds'
  assert.deepEqual([hanging.length, refused], [8, [8, 9].map((question) => [question, why])])
  hanging[3]({ user: 'x', password: 'y' })
  await new Promise(setImmediate)
  ask(10)
  assert.deepEqual([hanging.length, refused.length, answered], [9, 2, [3]])
})

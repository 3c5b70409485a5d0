// The function that returns the login, and its calls that never end.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'

const require = createRequire(import.meta.url)
const inside = (file) => require(path.join(path.dirname(require.resolve('retryrmq')), file))
const { registerCredentials } = inside('credentials.js')
const own = inside('notifications.js').dispatcher()

test('calls that hang are no more than eight', async () => {
  const [hanging, refused, answered] = [[], [], []]
  own.native = {
    answer: (request) => answered.push(request),
    refuse: (request, why) => refused.push([request, why]),
  }
  let ask
  own.addCredentialProvider = ({ request }) => (ask = request)
  registerCredentials(() => new Promise((resolve) => hanging.push(resolve)))
  for (let request = 0; request < 10; request++) ask(request)
  const why = '8 calls of it have not ended; have it give up after 20 seconds'
  assert.deepEqual([hanging.length, refused], [8, [8, 9].map((request) => [request, why])])
  hanging[3]({ user: 'x', password: 'y' })
  await new Promise(setImmediate)
  ask(10)
  assert.deepEqual([hanging.length, refused.length, answered], [9, 2, [3]])
})

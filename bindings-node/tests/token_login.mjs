// OAuth 2 tokens and a client certificate at a real broker: `tests/logins node token_login.mjs`.

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'

import { connect } from 'retryrmq'

/** How long a token is good for, in seconds: so long that a busy machine renews it in time. */
const LIFETIME = 40
const QUEUE = 'orders'
const { RETRYRMQ_LOGINS_AMQP: amqp, RETRYRMQ_LOGINS_TOKEN: mint, RETRYRMQ_LOGINS_CERTIFICATE: certificate } = process.env

/** A message a second is published and handled. */
async function handles(rmq, seconds) {
  let handled
  const consumer = await rmq.consume({ queue: QUEUE, dlx: true }, (msg) => handled(msg.text()))
  for (let number = 0; number < seconds; number++) {
    const text = new Promise((resolve) => (handled = resolve))
    await rmq.publish(QUEUE, String(number))
    assert.equal(await text, String(number))
    await sleep(1000)
  }
  await consumer.close()
}

let asked = 0
const credentials = () => {
  asked++
  return { user: 'token', password: execFileSync(mint, [String(LIFETIME)], { encoding: 'utf8' }) }
}
const tokens = await connect(amqp, { credentials })
await handles(tokens, 2 * LIFETIME + 4) // longer than two tokens live
assert.equal(tokens.reconnects, 0, 'the connections stay open')
assert.ok(asked > 2, `asked ${asked} times`)
assert.ok(tokens.healthy())
await tokens.close()

const certified = await connect(certificate)
await handles(certified, 1)
await certified.close()

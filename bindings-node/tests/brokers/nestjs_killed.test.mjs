// An application in NestJS whose broker is killed. It needs a broker of its own: RETRYRMQ_TEST_CONTROL begins the command that starts one.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

import { NestFactory } from '@nestjs/core'
import { Client } from 'retryrmq'
import { RetryConsume, RetryRmqModule, RetryRmqPublisher } from 'retryrmq/nestjs'

import { method, module, silent } from '../nestjs/nest.mjs'
import { test, until } from './broker.mjs'

const { RETRYRMQ_TEST_CONTROL: control = '', RETRYRMQ_TEST_VERSION: full = '' } = process.env
const version = full.split('.').slice(0, 2).join('.')
const skip = control === '' && 'no broker can be started here'

const run = promisify(execFile)
const [program, ...args] = control.split(' ')
/** Runs a command of `tests/broker/broker`, such as `kill`. */
const broker = async (command, ...more) => (await run(program, [...args, command, version, ...more])).stdout.trim()

test('a broker is killed while an application works: nothing is lost', { skip }, async (t) => {
  const node = await broker('spawn')
  let app
  // In this order, or the application would connect to a node that may have been given to another test.
  t.after(async () => {
    await app?.close()
    await broker('release', node)
  })
  const [url] = (await broker('url', node)).split('\n')
  const handled = new Map()
  class Orders {
    handle({ id }, { attempt }) {
      if (id % 2 === 0 && attempt === 1) throw new Error('busy')
      handled.set(id, (handled.get(id) ?? 0) + 1)
    }
  }
  method(Orders, 'handle', RetryConsume('orders', { dlx: true, retry: 'fixed(500ms, retries=5)', concurrency: 4 }))
  const App = module({ imports: [RetryRmqModule.forRoot(url)], providers: [Orders] })
  app = await NestFactory.createApplicationContext(App, { logger: silent, abortOnError: false })
  const publisher = app.get(RetryRmqPublisher)
  const confirmed = new Set()
  let stopped = false
  const publishing = (async () => {
    for (let id = 0; !stopped; id++) {
      // Not published again: only what is confirmed must arrive.
      await publisher.publish('orders', { id }, { messageId: `order-${id}` }).then(
        () => confirmed.add(id),
        () => new Promise((resolve) => setTimeout(resolve, 50)),
      )
    }
  })()
  await until('some are handled, also again', () => handled.size >= 100 && handled.has(0))
  await broker('kill', node)
  await until('the client has noticed', () => !app.get(Client).healthy())
  const before = confirmed.size
  await broker('start', node)
  await until('it works again', () => confirmed.size >= before + 100)
  stopped = true
  await publishing
  await until('all that was confirmed is handled', () => [...confirmed].every((id) => handled.has(id)))
  const parked = []
  for await (const { lastError } of app.get(Client).parked('orders')) parked.push(lastError)
  assert.deepEqual(parked, [])
})

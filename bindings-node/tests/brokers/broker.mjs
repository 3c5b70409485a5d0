// What the tests on a real broker share. RETRYRMQ_URL and RETRYRMQ_MANAGEMENT_URL say which one.

import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import path from 'node:path'
import { test as register } from 'node:test'
import { fileURLToPath } from 'node:url'

import { connect, setLogger } from 'retryrmq'

setLogger(false)

export const URL_ = process.env.RETRYRMQ_URL
const management = new URL(process.env.RETRYRMQ_MANAGEMENT_URL)
const authorization = `Basic ${Buffer.from(`${management.username}:${management.password}`).toString('base64')}`
/** As the management's addresses have it. */
export const vhost = encodeURIComponent(decodeURIComponent(new URL(URL_).pathname.slice(1)) || '/')

/** `2/3` is the second of three brokers that share the tests; without it this broker runs all of them. */
const [cell, cells] = (process.env.RETRYRMQ_TEST_CELL ?? '1/1').split('/').map(Number)

/** FNV-1a without its last bits, as in tests/harness. */
function nameHash(name) {
  let hash = 0x811c9dc5
  for (const byte of Buffer.from(name)) hash = Math.imul(hash ^ byte, 0x01000193)
  return hash >>> 3
}

/** A test that runs on the broker that its name chooses. */
export function test(name, ...rest) {
  if (nameHash(name) % cells === cell - 1) register(name, ...rest)
}

/** A test that runs on every broker: for what differs between versions. */
test.everywhere = register

/** Asks the broker's management. */
export async function manage(method, where, body) {
  const url = `${management.protocol}//${management.host}/api/${where}`
  const answer = await fetch(url, { method, headers: { authorization }, body: body && JSON.stringify(body) })
  if (answer.status === 404) return undefined
  // Of a connection that takes longer to end than RabbitMQ waits for that; it ends all the same.
  if (answer.status === 500 && method === 'DELETE' && where.startsWith('connections/')) return undefined
  if (!answer.ok) throw new Error(`${method} ${where}: ${answer.status} ${await answer.text()}`)
  return answer.status === 204 ? undefined : answer.json().catch(() => undefined)
}

/** Whether the broker is older than 4.3, where quorum queues count what is given back. */
export async function isBefore43() {
  const [major, minor] = (await manage('GET', 'overview')).rabbitmq_version.split('.').map(Number)
  return major < 4 || (major === 4 && minor < 3)
}

/** Long enough for the busiest machine, in milliseconds; a test that passes never waits for it. */
const PATIENCE = Number(process.env.PATIENCE ?? 120_000)
/** Numbers of processes come again; the queues of a run that was killed may still be there. */
const RUN = randomUUID().slice(0, 8)
let count = 0

const place = (queue) => `queues/${vhost}/${encodeURIComponent(queue)}`

/** Makes a quorum queue, with further arguments. */
export async function declare(name, more = {}) {
  await manage('PUT', place(name), { durable: true, arguments: { 'x-queue-type': 'quorum', ...more } })
}

/** A quorum queue of a test's own, gone with everything that hangs from it when the test is over. */
export async function queue(t, type = 'quorum', more = {}) {
  const name = `node-${RUN}-${++count}`
  await declare(name, { 'x-queue-type': type, ...more })
  t.after(async () => {
    const all = (await manage('GET', `queues/${vhost}?columns=name`)) ?? []
    const mine = all.filter((queue) => queue.name === name || queue.name.startsWith(`${name}.`))
    await Promise.all(mine.map((queue) => manage('DELETE', place(queue.name))))
  })
  return name
}

/** A client of a test's own. */
export async function client(t, options) {
  const rmq = await connect(URL_, options)
  t.after(() => rmq.close())
  return rmq
}

/** Waits until something holds; says what it was when that takes too long. */
export async function until(what, holds, ms = PATIENCE) {
  const deadline = Date.now() + ms
  for (;;) {
    const value = await holds()
    if (value) return value
    if (Date.now() > deadline) throw new Error(`this did not come to hold within ${ms} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

/** A promise and who settles it. */
export function deferred() {
  let resolve, reject
  const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]))
  return { promise, resolve, reject }
}

/** Has the broker close the connections of a client that it shows for one of its consumers. */
export async function cut(name) {
  const connections = async () => {
    const consumers = (await manage('GET', `consumers/${vhost}`)) ?? []
    const found = consumers.filter((consumer) => consumer.queue?.name === name)
    return found.map((consumer) => consumer.channel_details?.connection_name).filter(Boolean)
  }
  const names = await until('the broker shows the consumer', async () => {
    const found = await connections()
    return found.length > 0 && found
  })
  for (const connection of names) await manage('DELETE', `connections/${encodeURIComponent(connection)}`)
}

const here = path.dirname(fileURLToPath(import.meta.url))

/** Runs a program of `programs/` to its end, or until `during` is through with it. */
export async function program(name, args, during = async () => {}, flags = []) {
  const child = spawn(process.execPath, [...flags, path.join(here, 'programs', `${name}.mjs`), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const output = { text: '', errors: '' }
  child.stdout.on('data', (chunk) => (output.text += chunk))
  child.stderr.on('data', (chunk) => (output.errors += chunk))
  const closed = once(child, 'close')
  const timer = setTimeout(() => child.kill('SIGKILL'), PATIENCE)
  await during(child, (words) => until(`the program says ${words}`, () => output.text.includes(words)))
  const [code, signal] = await closed
  clearTimeout(timer)
  return { code, signal, ...output }
}

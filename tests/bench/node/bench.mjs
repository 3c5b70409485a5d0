// Measures the package beside its peers, in alternating rounds on one broker, and prints tables.
//
//     tests/broker/with-brokers --versions 4.3 --one -- tests/bench/node/run [consume|retry|storm|outage|latency|memory]…
//
// Every measurement is a process of its own, on a queue of its own. Nothing is asserted: the machine is whatever it is, and
// only ratios of one run mean anything. RETRYRMQ_BENCH_COUNT, RETRYRMQ_BENCH_RETRIED (messages that fail),
// RETRYRMQ_BENCH_OUTSTANDING (how many of these a client may hold: 200), RETRYRMQ_BENCH_STORM
// (messages of a storm), RETRYRMQ_BENCH_OUTAGE (its seconds), RETRYRMQ_BENCH_WAITING (messages that wait), RETRYRMQ_BENCH_ROUNDS and
// RETRYRMQ_BENCH_KINDS ("classic quorum") make it shorter. Without the name of a group, it measures consume, retry and latency.

import { spawn } from 'node:child_process'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'

import { connect, setLogger } from 'retryrmq'

import { GROUPS, NATIVE } from './cases.mjs'
import { HELD, Outage, PER_SECOND } from './load.mjs'
import { resident } from './measure.mjs'
import { fill, hasConsumer, ready, work } from './queues.mjs'
import { aims, keep, table } from './report.mjs'

setLogger(false)
const url = process.env.RETRYRMQ_URL
const COUNT = Number(process.env.RETRYRMQ_BENCH_COUNT || 100_000)
/** Of messages that fail. */
const RETRIED = Number(process.env.RETRYRMQ_BENCH_RETRIED || Math.max(Math.floor(COUNT / 5), 1))
/** Of a storm. */
const STORM = Number(process.env.RETRYRMQ_BENCH_STORM || 100_000)
/** The seconds of an outage. */
const AWAY = Number(process.env.RETRYRMQ_BENCH_OUTAGE || 120)
/** Of messages that wait for an hour. */
const WAITING = Number(process.env.RETRYRMQ_BENCH_WAITING || 10_000)
const ROUNDS = Number(process.env.RETRYRMQ_BENCH_ROUNDS || 5)
/** Of the groups that take long. */
const FEWER_ROUNDS = Math.min(ROUNDS, 3)
/** The limit: the core with a handler that does nothing; its program is named by `run`. */
const CORE = 'core'
const KINDS = ['classic', 'quorum'].filter((kind) => (process.env.RETRYRMQ_BENCH_KINDS || 'classic quorum').split(' ').includes(kind))
/** For one measurement, in ms. */
const PATIENCE = 1_800_000

const COSTS = [
  ['client CPU µs each', 'cpu_us', 1],
  ['peak RSS MiB', 'rss_mib', 0],
  ['loop delay p99 ms', 'loop_p99_ms', 1],
]
const PACE = [['messages/s', 'per_second', 0], ...COSTS]

function start(command, args) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  let output = ''
  child.stdout.on('data', (chunk) => (output += chunk))
  const timer = setTimeout(() => child.kill('SIGKILL'), PATIENCE)
  const done = new Promise((resolve, reject) => {
    child.on('error', reject)
    child.on('close', () => {
      clearTimeout(timer)
      if (output === '') reject(new Error(`${args.join(' ')} printed nothing`))
      else resolve(JSON.parse(output))
    })
  })
  return { child, done }
}

const program = (group, name, queue, count, options = []) =>
  name === CORE
    ? start(process.env.RETRYRMQ_BENCH_CORE, ['case', 'retryrmq', url, queue, String(count)])
    : start(process.execPath, [...options, fileURLToPath(new URL('cases.mjs', import.meta.url)), group, name, url, queue, String(count)])

/** All of them in turn, in each round from another one on. */
async function alternating(names, rounds, measure) {
  const found = Object.fromEntries(names.map((name) => [name, []]))
  for (let round = 0; round < rounds; round++) {
    const at = round % names.length
    for (const name of [...names.slice(at), ...names.slice(0, at)]) found[name][round] = await measure(name)
  }
  return found
}

async function consume() {
  console.log(`\n== consume and acknowledge ${COUNT} × 256 B, prefetch 200, ${ROUNDS} rounds`)
  for (const kind of KINDS) {
    const rounds = await alternating([CORE, ...Object.keys(GROUPS.consume)], ROUNDS, (name) =>
      work(url, kind, {}, async (queue) => {
        await fill(url, queue, COUNT)
        return program('consume', name, queue, COUNT).done
      }),
    )
    keep('consume and acknowledge', kind, COUNT, rounds)
    table(`${kind} work queue`, rounds, PACE, ['amqplib', 'rascal', CORE])
    aims(rounds, [
      ['retryrmq async', 'per_second', 'amqplib', '≥ 1.25'],
      ['retryrmq async', 'per_second', CORE, '≥ 0.85'],
      ['retryrmq async', 'per_second', 'rascal', '≥ 2'],
      ['retryrmq batch, 1600', 'per_second', 'retryrmq async, 1600', '≥ 1.5'],
      ['retryrmq async', 'cpu_us', 'amqplib', '< 1'],
    ])
  }
}

async function retry() {
  const all = RETRIED
  // Rascal holds what waits within its prefetch, so at most 200 a second come through; a tenth shows its pace.
  const counts = { 'rascal republish': Math.max(Math.floor(all / 10), 1) }
  console.log(`\n== ${all} × 256 B, each fails once and waits a second, ${HELD} outstanding, ${ROUNDS} rounds; the consumer is there first`)
  for (const kind of KINDS) {
    const rounds = await alternating(Object.keys(GROUPS.retry), ROUNDS, (name) => {
      const count = counts[name] ?? all
      return work(url, kind, { retry: 'fixed(1s)' }, async (queue) => {
        const measured = program('retry', name, queue, count)
        await Promise.race([hasConsumer(url, queue), measured.done])
        await fill(url, queue, count)
        return measured.done
      })
    })
    keep('fail once', `${kind}, ${HELD} outstanding`, all, rounds)
    table(`${kind} work queue`, rounds, PACE, ['amqplib by hand', 'rascal republish'])
    aims(rounds, [
      ['retryrmq', 'per_second', 'amqplib by hand', '≥ 1.25'],
      ['retryrmq', 'per_second', 'rascal republish', '≥ 2'],
      ['retryrmq', 'cpu_us', 'amqplib by hand', '< 1'],
    ])
  }
}

async function latency() {
  const count = Math.max(Math.floor(COUNT / 100), 20)
  console.log(`\n== one message at a time, 100 a second, ${count} of them, ${ROUNDS} rounds`)
  for (const kind of KINDS) {
    const rounds = await alternating(Object.keys(GROUPS.latency), ROUNDS, (name) =>
      work(url, kind, {}, async (queue) => {
        const publisher = program('latency', 'publisher', queue, count)
        publisher.done.catch(() => {}) // it prints nothing
        try {
          return await program('latency', name, queue, count).done
        } finally {
          publisher.child.kill('SIGKILL')
        }
      }),
    )
    table(`${kind} work queue`, rounds, [
      ['p50 ms', 'p50_ms', 2],
      ['p99 ms', 'p99_ms', 2],
      ...COSTS,
    ])
    aims(rounds, [['retryrmq', 'p99_ms', 'amqplib', '≤ 1']])
  }
}

async function storm() {
  console.log(`\n== ${STORM} × 256 B, each fails 5 times and waits a second each time, 1000 outstanding, ${FEWER_ROUNDS} rounds; the consumer is there first`)
  // Rascal holds what waits within its prefetch: see above.
  const counts = { 'rascal republish': Math.max(Math.floor(STORM / 10), 1) }
  const names = Object.fromEntries(
    Object.keys(GROUPS.storm)
      .filter((name) => delaysRetries || !NATIVE.includes(name))
      .map((name) => [name in counts ? `${name}, ${counts[name]} messages` : name, name]),
  )
  const rounds = await alternating(Object.keys(names), FEWER_ROUNDS, (title) => {
    const name = names[title]
    const count = counts[name] ?? STORM
    const options = { retry: 'fixed(1s)', ...(NATIVE.includes(name) && { strategy: 'native' }) }
    return work(url, 'quorum', options, async (queue) => {
      const measured = program('storm', name, queue, count)
      await Promise.race([hasConsumer(url, queue), measured.done])
      await fill(url, queue, count)
      return measured.done
    })
  })
  keep('retry storm', 'quorum', STORM, rounds)
  table('quorum work queue', rounds, PACE, ['amqplib by hand', ...NATIVE.filter((name) => name in rounds && !name.startsWith('retryrmq'))])
}

async function outage() {
  const count = AWAY * PER_SECOND
  console.log(
    `\n== ${count} messages, ${PER_SECOND} a second for ${AWAY} s, in which every attempt fails; five retries after 1 to 16 s; quorum, one round`,
  )
  const rounds = await alternating(Object.keys(GROUPS.outage), 1, (name) =>
    work(url, 'quorum', { retry: Outage.retry }, async (queue) => {
      const measured = program('outage', name, queue, count)
      await Promise.race([hasConsumer(url, queue), measured.done])
      const publisher = program('latency', 'publisher', queue, count)
      publisher.done.catch(() => {}) // it prints nothing
      return measured.done
    }),
  )
  keep('outage', 'quorum', count, rounds)
  table('outage', rounds, [
    ['failed attempts', 'attempts', 0],
    ['parked or dead', 'parked', 0],
    ['seconds until all was done', 'after_s', 1],
    ['client CPU µs each', 'cpu_us', 0],
  ])
}

async function memory() {
  console.log(`\n== ${WAITING} × 256 B, each fails once and waits for an hour, ${FEWER_ROUNDS} rounds; quorum`)
  const retry = 'fixed(1h)'
  // The first ones, with which buffers and caches fill, are not counted.
  const first = Math.max(Math.floor(WAITING / 10), 1)
  const rounds = await alternating(Object.keys(GROUPS.memory), FEWER_ROUNDS, (name) =>
    work(url, 'quorum', { retry }, async (queue) => {
      const measured = program('memory', name, queue, WAITING, ['--expose-gc'])
      measured.done.catch(() => {}) // it prints nothing
      try {
        await Promise.race([hasConsumer(url, queue), measured.done])
        await fill(url, queue, first)
        const before = await settled(queue, measured.child)
        await fill(url, queue, WAITING - first)
        const grown = (await settled(queue, measured.child)) - before
        const held = WAITING - (await ready(url, `${queue}.retry.3600000`))
        return { held, begin_kib: before, bytes_each: (grown * 1024) / (WAITING - first) }
      } finally {
        measured.child.kill('SIGKILL')
      }
    }),
  )
  keep('memory', 'quorum', WAITING, rounds)
  table('memory', rounds, [
    ['held by the client', 'held', 0],
    ['client KiB at a tenth', 'begin_kib', 0],
    ['client bytes each', 'bytes_each', 0],
  ])
}

/** The process' resident memory in KiB, once it has tried all messages and grows no more. */
async function settled(queue, child) {
  let last = 0
  const deadline = performance.now() + PATIENCE
  for (let steady = 0; steady < 6; ) {
    await new Promise((resolve) => setTimeout(resolve, 500))
    if (performance.now() > deadline) throw new Error(`not all messages of ${queue} were tried within ${PATIENCE} ms`)
    const now = resident(child.pid)
    steady = Math.abs(now - last) < last / 200 && (await ready(url, queue)) === 0 ? steady + 1 : 0
    last = now
  }
  return last
}

const groups = { consume, retry, latency, storm, outage, memory }
/** Measured unless others are named. */
const USUAL = ['consume', 'retry', 'latency']
const wanted = process.argv.slice(2)
const unknown = wanted.find((name) => !Object.hasOwn(groups, name))
if (unknown !== undefined) {
  console.error(`there is no group ${unknown}; there are ${Object.keys(groups).join(', ')}`)
  process.exit(2)
}
const require = createRequire(import.meta.url)
const peers = Object.keys(require('./package.json').dependencies).filter((name) => name !== 'retryrmq')
const versions = peers.map((name) => `${name} ${require(`./node_modules/${name}/package.json`).version}`)
const rmq = await connect(url)
/** Quorum queues do, from RabbitMQ 4.3 on. */
const delaysRetries = rmq.server.version.localeCompare('4.3', undefined, { numeric: true }) >= 0
console.log(`RabbitMQ ${rmq.server.version}, Node ${process.versions.node}; ${versions.join(', ')}`)
await rmq.close()
for (const name of wanted.length > 0 ? wanted : USUAL) await groups[name]()

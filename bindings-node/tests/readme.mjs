// Runs the first example of the README as it is printed: as ESM, as TypeScript, and as CJS, with the line that publishes.
// Its other examples, and those of the other pages, are compiled.
//
//     node readme.mjs README.md PAGE.md…      in a project with retryrmq and typescript

import assert from 'node:assert/strict'
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

/** Long enough for the busiest machine, in milliseconds; a run that passes never waits for it. */
const PATIENCE = 180_000

const [readme, ...pages] = process.argv.slice(2).map((path) => readFileSync(path, 'utf8'))
const blocks = (language, page = readme) =>
  [...page.matchAll(new RegExp(`^\`\`\`${language}\n([^]*?)^\`\`\`$`, 'gm'))].map(([, text]) => text)
const block = (language) => blocks(language)[0]
const expected = block('text').trim().split('\n')
const publish = blocks('console').find((text) => text.includes('publish')).trim().replace(/^\$ /, '')

writeFileSync('consumer.mjs', block('ts'))
writeFileSync('typed.mts', block('ts'))
writeFileSync('consumer.cjs', block('js'))
const compile = (...files) => {
  const compiler = ['node_modules/typescript/bin/tsc', '--strict', '--experimentalDecorators', '--module', 'nodenext', '--target', 'es2022']
  execFileSync(process.execPath, [...compiler, ...files], { stdio: 'inherit' })
}
compile('typed.mts')

/** What the README's examples take from the application around them, or from each other. */
const AROUND = `
import type { Client, Consumer, Handler, Middleware } from 'retryrmq'
import type { Logger as Winston } from 'winston'
declare global {
  const rmq: Client
  const orders: Consumer
  const handle: Handler
  const inTransaction: Middleware
  const winstonLogger: Winston
  const histogram: { record(milliseconds: number, attributes: { queue: string }): void }
  const database: { insert(orders: Order[]): Promise<{ error?: Error }[]> }
  function ship(id: number): Promise<void>
  function accept(rmq: Client, order: Order): Promise<void>
  const { connect, park }: typeof import('retryrmq')
  const vault: { login(name: string): Promise<{ user: string; password: string; seconds: number }> }
  class TimeoutError extends Error {}
  class ZodError extends Error {}
  interface Order { id: string; total: number }
  const Order: { parse(input: unknown): Order }
  const [order, limited, notOurTurn, error]: [Order, boolean, boolean, Error]
  function alert(text: string): void
  function test(name: string, run: () => Promise<void>): void
  function expect(value: unknown): { toBe(other: unknown): void; toEqual(other: unknown): void }
}
`
writeFileSync('around.mts', AROUND)
const others = [...blocks('ts').slice(1), ...pages.flatMap((page) => blocks('ts', page))]
assert.ok(others.length >= 14, `${others.length} examples`)
others.forEach((text, index) => writeFileSync(`example-${index}.mts`, `${text}\nexport {}\n`))
compile('--noEmit', 'around.mts', ...others.map((_, index) => `example-${index}.mts`))

for (const file of ['consumer.mjs', 'typed.mjs', 'consumer.cjs']) {
  const child = spawn(process.execPath, [file], { stdio: ['ignore', 'pipe', 'inherit'] })
  const timer = setTimeout(() => child.kill('SIGKILL'), PATIENCE)
  const lines = []
  // Until the consumer has made the queue.
  for (const deadline = Date.now() + PATIENCE; ; ) {
    const { status, stderr } = spawnSync('sh', ['-c', publish], { encoding: 'utf8' })
    if (status === 0) break
    if (!stderr.includes('UnroutableError') || Date.now() > deadline) throw new Error(stderr)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  const output = createInterface({ input: child.stdout })
  for await (const line of output) {
    lines.push(line)
    if (lines.length === expected.length) child.kill('SIGINT')
  }
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  clearTimeout(timer)
  assert.deepEqual([child.exitCode, lines], [0, expected], file)
}

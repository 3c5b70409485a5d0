// Runs the first example of the README as it is printed: as ESM, as TypeScript, and as CJS.
//
//     node readme.mjs README.md      in a project with retryrmq and typescript

import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline'

import { connect } from 'retryrmq'

const readme = readFileSync(process.argv[2], 'utf8')
const block = (language) => readme.match(new RegExp(`^\`\`\`${language}\n([^]*?)^\`\`\`$`, 'm'))[1]
const expected = block('text').trim().split('\n')

writeFileSync('consumer.mjs', block('ts'))
writeFileSync('typed.mts', block('ts'))
writeFileSync('consumer.cjs', block('js'))
const compiler = ['node_modules/typescript/bin/tsc', '--strict', '--module', 'nodenext', '--target', 'es2022', 'typed.mts']
execFileSync(process.execPath, compiler, { stdio: 'inherit' })

const rmq = await connect()
for (const file of ['consumer.mjs', 'typed.mjs', 'consumer.cjs']) {
  const child = spawn(process.execPath, [file], { stdio: ['ignore', 'pipe', 'inherit'] })
  const timer = setTimeout(() => child.kill('SIGKILL'), 60_000)
  const lines = []
  for (let left = 600; ; left--) {
    const refused = await rmq.publish('orders', 'order 7').catch((error) => error)
    if (refused === undefined) break
    if (refused.code !== 'unroutable' || left === 0) throw refused
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
await rmq.close()

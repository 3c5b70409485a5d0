// What every language restates of the core is what bindings-common/table.json says; a Rust test holds that to the core.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

import * as retryrmq from 'retryrmq'
import { simulate } from 'retryrmq/testing'

const TABLE = JSON.parse(readFileSync(new URL('../table.json', import.meta.url), 'utf8'))
const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase())
const types = path.dirname(fileURLToPath(import.meta.resolve('retryrmq')))
const declared = (file) => readFileSync(path.join(types, file), 'utf8')

test('options', () => {
  const said = declared('options.d.ts').split('export interface ConsumerOptions')[1].split('\n}')[0]
  const ours = new Set(said.match(/^ {4}\w+(?=\??:)/gm).map((name) => name.trim()))
  for (const own of ['middleware', 'keepAlive', 'signal']) ours.delete(own)
  assert.deepEqual([...ours].sort(), Object.keys(TABLE.options).map(camel).sort())
})

test('what there is no option for is refused with all that there are', async () => {
  const refused = await Promise.resolve()
    .then(() => simulate({ queue: 'orders', nonsense: 1 }, () => {}, ['x']))
    .catch((error) => error.message)
  for (const option of Object.keys(TABLE.options)) assert.ok(refused.includes(camel(option)), `${option}: ${refused}`)
})

test('events', () => {
  const said = declared('events.d.ts')
  const names = [...said.matchAll(/About(?:Message)?<'(\w+)'>/g)].map(([, name]) => name)
  assert.deepEqual([...new Set(names)].sort(), Object.keys(TABLE.events).sort())
  const reasons = said.split('type ParkReason =')[1].split(';')[0].match(/[a-z-]+(?=')/g)
  assert.deepEqual([...reasons].sort(), [...TABLE.reasons].sort())
})

test('codes', () => {
  const codes = Object.values(retryrmq)
    // That of a schema is a handler's.
    .filter((value) => typeof value === 'function' && /Error$/.test(value.name) && value !== retryrmq.ValidationError)
    .map((Class) => new Class('no').code)
  // Nothing forks in Node.
  const expected = new Set([...TABLE.codes.filter((code) => code !== 'forked'), 'error'])
  assert.deepEqual([...new Set(codes)].sort(), [...expected].sort())
})

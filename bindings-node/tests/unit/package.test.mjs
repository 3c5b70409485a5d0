// What the package says of its files is so.

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'

const require = createRequire(import.meta.url)
const manifest = require('retryrmq/package.json')
const root = path.dirname(require.resolve('retryrmq/package.json'))

/** All texts within a value. */
const texts = (value) => (typeof value === 'string' ? [value] : Object.values(value).flatMap(texts))

test('every file that is named is there', () => {
  const { main, types, exports, typesVersions, bin } = manifest
  // For compilers that do not read `exports`.
  assert.deepEqual(Object.keys(typesVersions['*']), ['testing', 'opentelemetry', 'nestjs'])
  for (const file of texts([main, types, exports, typesVersions, bin])) assert.ok(existsSync(path.join(root, file)), file)
})

test('where the package has no command, that is said, and the native module is not run instead', () => {
  const { status, signal, stderr } = spawnSync(process.execPath, [path.join(root, manifest.bin.retryrmq), '--version'], { encoding: 'utf8' })
  assert.equal(signal, null)
  if (status !== 0) assert.match(stderr, /has no command for .* install Rust and run `cargo install retryrmq-cli/)
})

test('nothing of OpenTelemetry is loaded unless it is used', () => {
  const program = `
    require('retryrmq')
    require('retryrmq/testing')
    const of = () => Object.keys(require.cache).filter((file) => file.includes('opentelemetry')).length
    const before = of()
    require('retryrmq/opentelemetry')
    console.log(before, of() > 0)`
  const { stdout, stderr } = spawnSync(process.execPath, ['-e', program], { encoding: 'utf8', cwd: process.cwd() })
  assert.equal(stdout, '0 true\n', stderr)
})

test('nothing of NestJS is loaded unless it is used', () => {
  const program = `
    require('retryrmq')
    require('retryrmq/testing')
    require('retryrmq/opentelemetry')
    console.log(Object.keys(require.cache).filter((file) => /nestjs|reflect-metadata|rxjs/.test(file)).length)
    require('retryrmq/nestjs')
    console.log(Object.keys(require.cache).filter((file) => file.includes('terminus')).length)`
  const { stdout, stderr } = spawnSync(process.execPath, ['-e', program], { encoding: 'utf8', cwd: process.cwd() })
  assert.equal(stdout, '0\n0\n', stderr)
})

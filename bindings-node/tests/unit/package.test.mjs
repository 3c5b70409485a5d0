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
  assert.deepEqual(Object.keys(typesVersions['*']), ['testing'])
  for (const file of texts([main, types, exports, typesVersions, bin])) assert.ok(existsSync(path.join(root, file)), file)
})

test('where the package has no command, that is said, and the native module is not run instead', () => {
  const { status, signal, stderr } = spawnSync(process.execPath, [path.join(root, manifest.bin.retryrmq), '--version'], { encoding: 'utf8' })
  assert.equal(signal, null)
  if (status !== 0) assert.match(stderr, /has no command for .* install Rust and run `cargo install retryrmq-cli/)
})

// Whether lib/native.ts describes the native half that there is: its functions, classes, methods and getters, by name.
//
//     node native_declarations.mjs lib/native.ts      in a project with retryrmq

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'

const require = createRequire(import.meta.url)
const { native } = require(path.join(path.dirname(require.resolve('retryrmq')), 'native.js'))
const source = readFileSync(process.argv[2], 'utf8')

/** The names of what an interface has. */
function described(name) {
  const [, body] = source.match(new RegExp(`^export interface ${name} \\{\n([^]*?)^\\}$`, 'm'))
  return [...body.matchAll(/^ {2}(?:readonly )?(\w+)/gm)].map(([, member]) => member).sort()
}

const members = (Class) => Object.getOwnPropertyNames(Class.prototype).filter((name) => name !== 'constructor').sort()
const classes = Object.keys(native).filter((name) => typeof native[name] === 'function' && /^[A-Z]/.test(name))
assert.ok(classes.includes('Subscription') && classes.includes('NotificationQueue'), classes.join())
for (const name of classes) assert.deepEqual(members(native[name]), described(name), name)
// Of the classes, only those that TypeScript makes.
const made = described('Native').filter((name) => classes.includes(name))
// An enumeration is a type in TypeScript, and no object.
const rest = Object.keys(native).filter((name) => !classes.includes(name) && typeof native[name] !== 'object')
assert.deepEqual([...made, ...rest].sort(), described('Native'))

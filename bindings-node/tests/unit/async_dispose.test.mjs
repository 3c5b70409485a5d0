// `await using`, where the symbol for it is and where it is not.

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'

import { Client, Consumer } from 'retryrmq'

test('clients and consumers can be disposed of', () => {
  for (const Class of [Client, Consumer]) assert.equal(typeof Class.prototype[Symbol.asyncDispose], 'function')
})

test('before Node 18.18 there is no method of a strange name', () => {
  const program = `
    const all = Object.getOwnPropertyNames(Symbol).filter((name) => name !== 'asyncDispose' && name !== 'prototype')
    const old = Object.assign((text) => real(text), {})
    const real = Symbol
    for (const name of all) Object.defineProperty(old, name, Object.getOwnPropertyDescriptor(real, name))
    globalThis.Symbol = old
    const { Client, Consumer } = require('retryrmq')
    for (const Class of [Client, Consumer]) if ('undefined' in Class.prototype) throw new Error('it is there')
    console.log(typeof Symbol.asyncDispose)`
  assert.equal(execFileSync(process.execPath, ['-e', program], { cwd: import.meta.dirname, encoding: 'utf8' }), 'undefined\n')
})

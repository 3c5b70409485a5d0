#!/usr/bin/env node
/** `npx retryrmq`: runs the command, and passes on signals and the exit status. */

import { spawn } from 'node:child_process'
import { basename } from 'node:path'

import { platforms } from './platform.js'

/** Signals that end a program. They are passed on to the command. */
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const
/** Signals of the keyboard, which a terminal sends to all processes in its foreground. */
const OF_THE_KEYBOARD: readonly NodeJS.Signals[] = ['SIGINT', 'SIGQUIT']

function find(): string | undefined {
  for (const name of platforms()) {
    for (const place of [`@retryrmq/${name}/retryrmq`, `../npm/${name}/retryrmq`]) {
      try {
        const found = require.resolve(place)
        // Where the command is missing, Node finds the native module beside it, `retryrmq.node`.
        if (basename(found) === 'retryrmq') return found
      } catch {
        // Another one may be there.
      }
    }
  }
  return undefined
}

function fail(why: string): never {
  console.error(why)
  process.exit(1)
}

function run(command: string): void {
  const child = spawn(command, process.argv.slice(2), { stdio: 'inherit' })
  const onTerminal = [process.stdin, process.stdout, process.stderr].some((stream) => stream.isTTY)
  for (const signal of SIGNALS) {
    process.on(signal, () => {
      // A second SIGINT would end the command without a drain.
      if (!onTerminal || !OF_THE_KEYBOARD.includes(signal)) child.kill(signal)
    })
  }
  child.on('error', (error) => fail(`cannot run ${command}: ${error.message}`))
  child.on('exit', (code, signal) => {
    if (signal === null) process.exit(code ?? 1)
    process.removeAllListeners(signal)
    process.kill(process.pid, signal)
  })
}

const command = find()
if (command === undefined) {
  fail(
    `the npm package retryrmq has no command for ${process.platform}-${process.arch} here: install it from the registry without ` +
      '`--no-optional`, of files that of its platform as well, or install Rust and run `cargo install retryrmq-cli --locked`',
  )
}
run(command)

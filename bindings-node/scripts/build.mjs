// Builds the package in its folder: the native module for this platform, then the TypeScript half.
//
//     node scripts/build.mjs                 both
//     node scripts/build.mjs --typescript    the TypeScript half alone
//
// Needs Rust. RETRYRMQ_PROFILE=dev builds in a third of the time what runs half as fast. Runs by itself when the folder is
// installed, and for `npm pack`. What comes from a registry is built already.

import { execFileSync } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

import { platformName } from './platforms.mjs'

const here = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..')
const dev = process.env.RETRYRMQ_PROFILE === 'dev'

function run(command, args, options = {}) {
  execFileSync(command, args, { cwd: here, stdio: ['ignore', 'inherit', 'inherit'], ...options })
}

/** npm shows nothing of what this prints while a folder is installed, so people are told on their terminal. */
function tell(text) {
  console.log(text)
  if (process.stdout.isTTY) return
  try {
    writeFileSync('/dev/tty', `\n${text}\n`)
  } catch {
    // There is no terminal, and so nobody who wonders.
  }
}

function cargo() {
  const args = ['build', '--quiet', '-p', 'retryrmq-node', '--message-format=json-render-diagnostics']
  if (!dev) args.push('--release')
  let output
  try {
    output = execFileSync('cargo', args, { cwd: here, stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 1 << 28 })
  } catch (error) {
    if (error.code === 'ENOENT') throw new Error('building retryrmq from source needs Rust: install it with rustup')
    throw error
  }
  const artifacts = output
    .toString()
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line))
    .filter((line) => line.reason === 'compiler-artifact' && line.target.name === 'retryrmq_node')
  return artifacts.at(-1).filenames.find((name) => /\.(so|dylib|dll)$/.test(name))
}

function native() {
  const folder = path.join(here, 'npm', platformName())
  mkdirSync(folder, { recursive: true })
  const module = path.join(folder, 'retryrmq.node')
  // By way of a new file: a process may have the old one mapped.
  copyFileSync(cargo(), `${module}.new`)
  renameSync(`${module}.new`, module)
}

function typescript() {
  const require = createRequire(path.join(here, 'package.json'))
  const find = () => require.resolve('typescript/package.json')
  try {
    find()
  } catch {
    // As a dependency of somebody else's folder this one is linked without what it is built with.
    run('npm', ['install', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error', '--no-save'])
  }
  const compiler = path.join(path.dirname(find()), 'bin', 'tsc')
  rmSync(path.join(here, 'dist'), { recursive: true, force: true })
  run(process.execPath, [existsSync(compiler) ? compiler : `${compiler}.js`, '-p', 'tsconfig.json'])
}

try {
  if (!process.argv.includes('--typescript')) {
    tell('retryrmq: compiling the native module with Rust; the first time this takes some minutes')
    native()
  }
  typescript()
} catch (error) {
  console.error(`retryrmq could not be built: ${error.message}`)
  process.exit(1)
}

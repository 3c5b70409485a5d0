// The packages per platform under npm/: the names, and what is written when they are released.
//
//     node scripts/platforms.mjs          writes npm/<platform>/package.json for all of them
//     node scripts/platforms.mjs release  has package.json name them as optional dependencies, as it is published
//
// A package for a platform holds the native module, retryrmq.node, and the command, retryrmq, which Windows has not. `dist/build`
// puts them there.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const here = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..')

const platforms = {
  'linux-x64-gnu': { os: ['linux'], cpu: ['x64'], libc: ['glibc'] },
  'linux-x64-musl': { os: ['linux'], cpu: ['x64'], libc: ['musl'] },
  'linux-arm64-gnu': { os: ['linux'], cpu: ['arm64'], libc: ['glibc'] },
  'linux-arm64-musl': { os: ['linux'], cpu: ['arm64'], libc: ['musl'] },
  'darwin-x64': { os: ['darwin'], cpu: ['x64'] },
  'darwin-arm64': { os: ['darwin'], cpu: ['arm64'] },
  'win32-x64': { os: ['win32'], cpu: ['x64'] },
}

export function platformName() {
  const name = `${process.platform}-${process.arch}`
  if (process.platform !== 'linux') return name
  return process.report.getReport().header.glibcVersionRuntime ? `${name}-gnu` : `${name}-musl`
}

const manifest = path.join(here, 'package.json')
const read = () => JSON.parse(readFileSync(manifest, 'utf8'))
const write = (file, value) => writeFileSync(file, `${JSON.stringify(value, null, 2)}\n`)

function writePackages() {
  const { version, license, homepage, repository, engines } = read()
  for (const [name, where] of Object.entries(platforms)) {
    const folder = path.join(here, 'npm', name)
    mkdirSync(folder, { recursive: true })
    write(path.join(folder, 'package.json'), {
      name: `@retryrmq/${name}`,
      version,
      description: `The native half of retryrmq for ${name}${where.os[0] === 'win32' ? '' : ', and its command'}.`,
      license,
      homepage,
      repository: { ...repository, directory: `bindings-node/npm/${name}` },
      main: 'retryrmq.node',
      files: where.os[0] === 'win32' ? ['retryrmq.node'] : ['retryrmq.node', 'retryrmq'],
      engines,
      ...where,
    })
  }
}

function release() {
  const main = read()
  main.optionalDependencies = Object.fromEntries(
    Object.keys(platforms).map((name) => [`@retryrmq/${name}`, main.version]),
  )
  main.files = ['dist', 'LICENSE-*']
  delete main.scripts.prepare
  write(manifest, main)
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv[2] === 'release') release()
  else writePackages()
}

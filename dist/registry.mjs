// A registry for npm on loopback that has the tarballs of some directories, and nothing else: registry.mjs DIRECTORY…
// Prints its address, and ends with its standard input.

import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFileSync, readdirSync } from 'node:fs'
import { createServer } from 'node:http'
import path from 'node:path'

/** By name: the manifest and the file of its one version. */
const packages = new Map()
for (const directory of process.argv.slice(2)) {
  for (const name of readdirSync(directory).filter((file) => file.endsWith('.tgz'))) {
    const file = path.join(directory, name)
    const [first] = execFileSync('tar', ['-tzf', file], { encoding: 'utf8' }).split('/')
    const manifest = JSON.parse(execFileSync('tar', ['-xzOf', file, `${first}/package.json`], { encoding: 'utf8' }))
    packages.set(manifest.name, { manifest, file })
  }
}

const server = createServer((request, response) => {
  const asked = decodeURIComponent(request.url.slice(1))
  const [name, wantsFile] = asked.endsWith('.tgz') ? [asked.slice(0, -4), true] : [asked, false]
  const found = packages.get(name)
  if (found === undefined) {
    response.writeHead(404).end('{"error":"there is no such package here"}')
    return
  }
  const { manifest, file } = found
  const content = readFileSync(file)
  if (wantsFile) {
    response.end(content)
    return
  }
  const tarball = `http://127.0.0.1:${server.address().port}/${encodeURIComponent(name)}.tgz`
  const integrity = `sha512-${createHash('sha512').update(content).digest('base64')}`
  const versions = { [manifest.version]: { ...manifest, dist: { tarball, integrity } } }
  response.setHeader('content-type', 'application/json')
  response.end(JSON.stringify({ name, 'dist-tags': { latest: manifest.version }, versions }))
})
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}/`))
process.stdin.resume().on('end', () => process.exit())

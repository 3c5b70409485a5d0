// Other ways to the broker, and other people who take them.

import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import net from 'node:net'

import { URL_, manage, vhost } from './broker.mjs'

export const broker = new URL(URL_)

/** The broker's address with another place, and perhaps somebody else. */
export const at = (place, who = `${broker.username}:${broker.password}`) => `amqp://${who}@${place}${broker.pathname}`

/**
 * A port on which nothing listens. It is nobody else's until the end of the test, because a connection begins there, but a proxy of the test may
 * listen on it.
 */
export async function freePort(t) {
  const listener = net.createServer((end) => end.unref()).listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const holder = net.connect({ port: listener.address().port, host: '127.0.0.1', localAddress: '127.0.0.1', localPort: 0 }).unref()
  await once(holder, 'connect')
  t.after(() => (holder.destroy(), listener.close()))
  return holder.localPort
}

/**
 * A way to the broker that can be cut, or held up for a while, and goes with the test. What clients send may come so many milliseconds late, and never
 * when they are gone by then.
 */
export async function proxy(t, port = 0) {
  const open = new Set()
  const way = { late: 0 }
  const listener = net.createServer((one) => {
    const other = net.connect(Number(broker.port || 5672), broker.hostname)
    for (const [from, to] of [
      [one, other],
      [other, one],
    ]) {
      open.add(from)
      from.on('error', () => {}).on('close', () => (open.delete(from), to.destroy()))
    }
    one.on('data', (bytes) => (way.late === 0 ? other.write(bytes) : setTimeout(() => other.write(bytes), way.late)))
    one.on('end', () => (way.late === 0 ? other.end() : other.destroy()))
    other.pipe(one)
  })
  listener.listen(port, '127.0.0.1')
  await once(listener, 'listening')
  const cut = () => open.forEach((socket) => socket.destroy())
  const hold = () => open.forEach((socket) => socket.pause())
  const release = () => open.forEach((socket) => socket.resume())
  const close = () => (listener.close(), cut())
  t.after(close)
  return Object.assign(way, { place: `127.0.0.1:${listener.address().port}`, cut, hold, release, close })
}

/** Somebody whose password can be changed; gone with the test. */
export async function user(t) {
  const name = `node-${randomUUID().slice(0, 12)}`
  const setPassword = (password) => manage('PUT', `users/${name}`, { password, tags: '' })
  await setPassword('old')
  t.after(() => manage('DELETE', `users/${name}`))
  await manage('PUT', `permissions/${vhost}/${name}`, { configure: '.*', write: '.*', read: '.*' })
  return { name, setPassword }
}

// The work of every peer in Node: the same handler, called as the peer's own documentation calls one.
//
// Each attempt is written down as a line of 21 bytes in a file per order, so that attempts are counted across processes and kills.

import { closeSync, fstatSync, openSync, writeSync } from 'node:fs'
import { join } from 'node:path'

export const URL = process.env.PEER_URL
export const QUEUE = 'work'
export const DELAY_MS = Number(process.env.PEER_DELAY_MS)
export const RETRIES = Number(process.env.PEER_RETRIES)
export const PREFETCH = 5
const LINE = 21

/** Why an order fails; what an operator wants to read afterwards. */
export class CardDeclinedError extends Error {}

/** Fails as often as the order says; -1: always. */
export async function handle(order) {
  if (Buffer.isBuffer(order) || typeof order === 'string') order = JSON.parse(order.toString())
  const file = openSync(join(process.env.PEER_LOG, order.id), 'a')
  writeSync(file, `${(Date.now() / 1000).toFixed(6).padStart(LINE - 1, '0')}\n`)
  const attempt = Math.floor(fstatSync(file).size / LINE)
  closeSync(file)
  if (order.takes) await new Promise((resolve) => setTimeout(resolve, order.takes * 1000))
  if (order.fail < 0 || attempt <= order.fail) throw new CardDeclinedError('card 4711 was declined')
}

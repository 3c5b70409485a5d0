// Figures as tables: median, spread, and ratios round by round.

import { appendFileSync } from 'node:fs'

const median = (sorted) => (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2

/** The median, and in brackets the smallest and the largest. */
export function spread(values, digits) {
  const found = values.filter((value) => Number.isFinite(value)).sort((one, other) => one - other)
  if (found.length === 0) return '–'
  const text = (value) => value.toFixed(digits)
  return `${text(median(found))} [${text(found[0])} – ${text(found.at(-1))}]`
}

/** Round by round, so that what the machine does in between hits both. */
export const ratios = (rounds, name, peer, figure) =>
  rounds[name].map((figures, round) => figures[figure] / rounds[peer][round]?.[figure])

/** A line for tests/bench/table, in the file RETRYRMQ_BENCH_FIGURES if that is set. */
export function keep(group, kind, count, rounds) {
  const file = process.env.RETRYRMQ_BENCH_FIGURES
  if (file) appendFileSync(file, `${JSON.stringify({ language: 'Node', group, kind, count, rounds })}\n`)
}

/** `columns`: title, figure and digits. `peers`: those to whose pace the others' is compared. */
export function table(title, rounds, columns, peers = []) {
  const head = ['case', ...columns.map(([name]) => name), ...peers.map((peer) => `pace × ${peer}`)]
  const rows = Object.keys(rounds).map((name) => [
    name,
    ...columns.map(([, figure, digits]) => spread(rounds[name].map((figures) => figures[figure]), digits)),
    ...peers.map((peer) => spread(ratios(rounds, name, peer, 'per_second'), 2)),
  ])
  print(title, head, rows)
}

/** What is aimed at, (case, figure, peer, aim), beside what was found. */
export function aims(rounds, wanted) {
  const names = { per_second: 'pace', cpu_us: 'CPU per message', p99_ms: 'p99' }
  const rows = wanted.map(([name, figure, peer, aim]) => [
    `${name}: ${names[figure]} to that of ${peer}`,
    aim,
    spread(ratios(rounds, name, peer, figure), 2),
  ])
  print('aims', ['', 'aim', 'found'], rows)
}

function print(title, head, rows) {
  const widths = head.map((text, at) => Math.max(text.length, ...rows.map((row) => row[at].length)))
  const line = (cells) =>
    cells.map((text, at) => (at === 0 ? text.padEnd(widths[at]) : text.padStart(widths[at]))).join('  ')
  console.log(`\n${title}\n${line(head)}\n${widths.map((width) => '─'.repeat(width)).join('──')}`)
  for (const row of rows) console.log(line(row))
}

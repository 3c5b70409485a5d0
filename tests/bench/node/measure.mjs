// What every measured program shares: the work, the clock, and one line of JSON at the end.

import { readFileSync, writeSync } from 'node:fs'
import { monitorEventLoopDelay } from 'node:perf_hooks'

export const BODY = Buffer.alloc(256, 'x')
export const PREFETCH = 200

/** CPU of this process so far, in µs. */
export const cpu = () => {
  const { user, system } = process.cpuUsage()
  return user + system
}

/** From proc(5), in KiB. */
const kib = (figure, pid) => Number(readFileSync(`/proc/${pid}/status`, 'utf8').match(new RegExp(`${figure}:\\s+(\\d+)`))[1])

/** The memory of a process that is resident now, in KiB. */
export const resident = (pid) => kib('VmRSS', pid)

/** The most memory that was resident, in MiB; from proc(5), or what getrusage says. */
function peak() {
  try {
    return kib('VmHWM', 'self') / 1024
  } catch {
    return process.resourceUsage().maxRSS / 1024
  }
}

/** What a process costs from now on: memory, and how long its event loop keeps others waiting. */
function costs() {
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  return () => ({ rss_mib: peak(), loop_p99_ms: delay.percentile(99) / 1e6 })
}

/** Counts messages; at the last one it reports and ends the process, whatever else runs in it. */
export class Meter {
  constructor(count) {
    this.count = this.left = count
    this.began = process.hrtime.bigint()
    this.cpu = cpu()
    this.costs = costs()
  }

  /** A delivery is here. The clock starts with the first: what is measured may have waited for its messages. */
  arrived() {
    if (this.hasArrived) return
    this.hasArrived = true
    this.began = process.hrtime.bigint()
    this.cpu = cpu()
    this.costs = costs()
  }

  one() {
    if (--this.left > 0) return
    const took = Number(process.hrtime.bigint() - this.began) / 1e9
    report({
      per_second: this.count / took,
      cpu_us: (cpu() - this.cpu) / this.count,
      ...this.costs(),
    })
  }
}

/** How long messages are under way. Their body begins with the monotonic clock at their publication, in ns. */
export class Lateness {
  seen = []

  constructor(count) {
    this.count = count
    this.cpu = cpu()
    this.costs = costs()
  }

  one(body) {
    const text = body.toString('latin1')
    this.seen.push(Number(process.hrtime.bigint() - BigInt(text.slice(0, text.indexOf(' ')))))
    if (this.seen.length < this.count) return
    const used = cpu() - this.cpu
    // The first ones, with which connections and caches warm up, are not counted.
    const late = this.seen.slice(Math.min(100, this.count / 2)).sort((one, other) => one - other)
    const at = (share) => late[Math.floor((late.length - 1) * share)] / 1e6
    report({ p50_ms: at(0.5), p99_ms: at(0.99), cpu_us: used / this.count, ...this.costs() })
  }
}

/** Ends the process, whatever else runs in it. */
export function report(figures) {
  writeSync(1, `${JSON.stringify(figures)}\n`)
  process.kill(process.pid, 'SIGKILL')
}

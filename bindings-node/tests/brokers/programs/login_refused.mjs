// Consumes as somebody whose login is refused after a loss, which ends the client, and nobody waits for anything.

import { connect, setLogger } from 'retryrmq'

const [url, queue] = process.argv.slice(2)
setLogger(false)
const rmq = await connect(url, { endWhenRefused: true })
await rmq.consume({ queue, dlx: true }, () => {})
console.log('consuming')
process.on('exit', () => console.log(rmq.trouble()))

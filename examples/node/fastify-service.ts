// A web service that publishes and consumes. Consumers start last and drain first: a handler may use everything that the
// service has.

import fastify, { type FastifyError } from 'fastify'
import { connect, RetryRmqError, type Consumer } from 'retryrmq'

interface Email {
  to: string
  text: string
}

const queue = 'example.emails'
const rmq = await connect()
// Without this, a client that keeps its connection would keep the service.
const app = fastify({ forceCloseConnections: true })

const text = { type: 'string', minLength: 1 }
const schema = { body: { type: 'object', required: ['to', 'text'], properties: { to: text, text } } } // otherwise 400

app.post<{ Body: Email }>('/emails', { schema }, async (request, reply) => {
  // Answers when the broker has confirmed: from then on the broker is responsible for the message.
  await rmq.publish(queue, JSON.stringify(request.body), { contentType: 'application/json', timeout: '10s' })
  return reply.code(202).send({ accepted: request.body.to })
})

// The message may not be stored, so the client should try again.
const unavailable = ['unreachable', 'connection_lost', 'timeout', 'not_confirmed', 'closed']

app.setErrorHandler<FastifyError>((error, _, reply) => {
  if (error.statusCode !== undefined && error.statusCode < 500) return reply.send(error)
  console.error(error) // not for the client: it names the broker
  if (error instanceof RetryRmqError && unavailable.includes(error.code)) {
    return reply.code(503).send({ error: 'try again later' })
  }
  return reply.code(500).send({ error: 'something went wrong' })
})

app.get('/metrics', async (_, reply) => {
  return reply.type('application/openmetrics-text; version=1.0.0; charset=utf-8').send(rmq.metricsText())
})

// Whether it is ready. For liveness ask something else. Why it is not is in the log.
app.get('/health', async (_, reply) => {
  return rmq.healthy() ? 'fine' : reply.code(503).send('not connected to the broker')
})

// First the handlers drain, while open requests are still answered. Then Fastify closes its connections, and then the
// client closes.
let emails: Consumer | undefined
app.addHook('preClose', () => emails?.close())
app.addHook('onClose', () => rmq.close())
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void app.close())

console.log(`listening on ${await app.listen({ port: Number(process.env.PORT ?? 0) })}`)

const retry = 'exponential(500ms, max=1m, retries=8)'
emails = await rmq.consume({ queue, dlx: true, retry, fatal: SyntaxError }, async (msg) => {
  const email = msg.json<Email>()
  if (msg.attempt === 1) throw new Error('the mail server is restarting')
  console.log(`sent to ${email.to}, attempt ${msg.attempt}`)
})

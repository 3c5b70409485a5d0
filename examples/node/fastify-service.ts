// A web service that publishes and consumes. Consumers start last and drain first: a handler may use everything that the
// service has.

import fastify from 'fastify'
import { connect, type Consumer } from 'retryrmq'

interface Email {
  to: string
  text: string
}

const queue = 'example.emails'
const rmq = await connect()
// Without this, a client that keeps its connection would keep the service.
const app = fastify({ forceCloseConnections: true })

app.post<{ Body: Email }>('/emails', async (request, reply) => {
  try {
    // Answers when the broker has confirmed: from then on the broker is responsible for the message.
    await rmq.publish(queue, JSON.stringify(request.body), { contentType: 'application/json' })
  } catch (error) {
    console.error(error) // not for the client: it names the broker
    return reply.code(503).send({ error: 'try again later' })
  }
  return reply.code(202).send({ accepted: request.body.to })
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

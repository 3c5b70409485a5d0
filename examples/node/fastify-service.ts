// A web service that publishes and consumes. The consumers live as long as the service: when it is stopped, handlers
// finish and everything is settled.

import fastify from 'fastify'
import { connect } from 'retryrmq'

interface Email {
  to: string
  text: string
}

const queue = 'example.emails'
const rmq = await connect()
// Without this, a client that keeps its connection would keep the service.
const app = fastify({ forceCloseConnections: true })

const retry = 'exponential(500ms, max=1m, retries=8)'
const emails = await rmq.consume({ queue, dlx: true, retry, fatal: SyntaxError }, async (msg) => {
  const email = msg.json<Email>()
  if (msg.attempt === 1) throw new Error('the mail server is restarting')
  console.log(`sent to ${email.to}, attempt ${msg.attempt}`)
})

app.post<{ Body: Email }>('/emails', async (request, reply) => {
  // Answers when the broker has confirmed: from then on the broker is responsible for the message.
  await rmq.publish(queue, JSON.stringify(request.body), { contentType: 'application/json' })
  return reply.code(202).send({ accepted: request.body.to })
})

app.get('/metrics', async (_, reply) => {
  return reply.type('application/openmetrics-text; version=1.0.0; charset=utf-8').send(rmq.metricsText())
})

// Whether it is ready: why not, if it is not. For liveness ask something else.
app.get('/health', async (_, reply) => {
  const trouble = rmq.trouble()
  return reply.code(trouble === null ? 200 : 503).send(trouble ?? 'fine')
})

// First the handlers drain, while open requests are still answered. Then Fastify closes its connections, and then the
// client closes.
app.addHook('preClose', () => emails.close())
app.addHook('onClose', () => rmq.close())
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void app.close())

console.log(`listening on ${await app.listen({ port: Number(process.env.PORT ?? 0) })}`)

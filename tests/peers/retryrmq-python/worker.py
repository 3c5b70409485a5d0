"""retryrmq, with everything else left as it comes."""

import order
import retryrmq

app = retryrmq.App(order.URL)


@app.consume(
    order.QUEUE, dlx=True, retry=f"fixed({order.DELAY_MS}ms, retries={order.RETRIES})", prefetch=order.PREFETCH
)
def handle(message):
    order.handle(message.body)


app.run()

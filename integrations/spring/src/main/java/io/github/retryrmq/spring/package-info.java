/**
 * Retries and parking for {@code @RabbitListener}, in the queues and headers of retryrmq's wire contract. {@link
 * io.github.retryrmq.spring.Retryrmq} is the one bean; {@link io.github.retryrmq.spring.Park}, {@link io.github.retryrmq.spring.RetryAfter} and
 * {@link io.github.retryrmq.spring.Defer} are thrown by listeners.
 */
package io.github.retryrmq.spring;

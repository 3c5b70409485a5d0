package io.github.retryrmq.spring;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NavigableSet;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Function;

import com.rabbitmq.client.AMQP.BasicProperties;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.listener.ConditionalRejectingErrorHandler;
import org.springframework.amqp.listener.FatalListenerStartupException;
import org.springframework.amqp.listener.ListenerExecutionFailedException;
import org.springframework.amqp.support.converter.MessageConversionException;

/** Decides what follows the attempts at the messages of one work queue, and makes the copies. */
final class Retrier {

    /** A message that is delivered: the work of one advice. */
    record Delivery(BasicProperties properties, byte[] body, RetryState state, String exchange, String routingKey, BooleanSupplier lost) {
    }

    /** Where a copy waits, and with which expiration of its own. */
    private record Route(String queue, Long expiration) {
    }

    private static final Duration HELD_AT_MOST = Duration.ofMinutes(10);
    private static final long DETOUR = 100;

    private final String queue;
    private final RetryOptions options;
    private final Broker broker;
    private final NavigableSet<Long> waits = new ConcurrentSkipListSet<>();
    private final ConditionalRejectingErrorHandler.DefaultExceptionStrategy fatal = new ConditionalRejectingErrorHandler.DefaultExceptionStrategy();
    private volatile boolean classic;

    Retrier(String queue, RetryOptions options, Broker broker) {
        this.queue = queue;
        this.options = options;
        this.broker = broker;
        options.policies().forEach(policy -> waits.addAll(policy.delays()));
        waits.add(detour());
    }

    /** Declares what failed messages need, before the first message is consumed. */
    void prepare() {
        try {
            String flaw = broker.flaw(queue);
            if (flaw != null) {
                throw new FatalListenerStartupException("the queue `" + queue + "` is " + flaw + ": RabbitMQ deletes it when its consumers leave, and the "
                        + "messages that wait for a retry have no queue to come back to; use a durable queue, or set dlx to false for it", null);
            }
            Broker.Kind kind = broker.kind(queue);
            if (kind == Broker.Kind.STREAM) {
                throw new FatalListenerStartupException("the queue `" + queue + "` is a stream, which cannot be a work queue: acknowledged messages "
                        + "stay in it; use a quorum or classic queue, or set dlx to false for it", null);
            }
            classic = kind == Broker.Kind.CLASSIC;
            List<String> missing = new ArrayList<>();
            for (long delay : waits) {
                if (!has(delay)) {
                    missing.add(name(delay));
                }
            }
            if (options.park && !hasParking()) {
                missing.add(queue + ".parked");
            } else if (options.park) {
                checkParking(queue + ".parked");
            }
            if (!options.declare && !missing.isEmpty()) {
                throw new FatalListenerStartupException("the queues " + missing + " do not exist, and with `declare` off they are not created: create them "
                        + "with `retryrmq topology " + queue + " --apply`, or turn `declare` on", null);
            }
        } catch (IOException unreachable) {
            throw new AmqpException("the waiting queues of `" + queue + "` cannot be declared: " + unreachable.getMessage(), unreachable);
        }
    }

    private void checkParking(String parking) throws IOException {
        // A look at an auto-delete queue would delete it, so this is asked first.
        String flaw = broker.flaw(parking);
        if (flaw != null) {
            throw new FatalListenerStartupException("the parking queue `" + parking + "` is " + flaw + ": RabbitMQ deletes it, with everything parked in "
                    + "it, as soon as its last reader leaves; declare it durable, or let this module create it", null);
        }
        if (broker.kind(parking) == Broker.Kind.STREAM) {
            throw new FatalListenerStartupException("the parking queue `" + parking + "` is a stream, from which no message can be taken to be replayed; "
                    + "delete it and let this module create it", null);
        }
    }

    boolean isClassic() {
        return classic;
    }

    RetryOptions options() {
        return options;
    }

    /** What follows an attempt that failed. Returns when the message may be acknowledged. */
    void failed(Delivery delivery, Throwable thrown) {
        Throwable cause = own(thrown);
        RetryState state = delivery.state;
        long now = System.currentTimeMillis() / 1000;
        Defer defer = Failure.cause(cause, Defer.class);
        Park park = Failure.cause(cause, Park.class);
        Failure failure = Failure.of(park == null ? cause : park);
        Policy policy = options.rules.stream()
                .filter(rule -> rule.holds(new Rule.Failed(delivery.routingKey, headers(delivery.properties), failure.types())))
                .map(Rule::policy).findFirst().orElse(options.retry);
        if (defer != null) {
            long delay = bounded(defer.delay());
            if (state.deferrals() >= options.deferLimit) {
                park(delivery, "exhausted", Failure.of("it was deferred " + state.deferrals() + " times"), policy);
            } else if (state.tooOld(policy, now, delay)) {
                park(delivery, "too-old", Failure.of(String.valueOf(defer.getMessage())), policy);
            } else {
                store(delivery, () -> chosen(delay), copy -> wait -> copy.deferral(wait.expiration));
                Retryrmq.LOGGER.debug(attempt(delivery, policy) + " is deferred; again in " + Policy.show(delay));
            }
            return;
        }
        String last = reason(cause);
        if (last != null) {
            park(delivery, last, failure, policy);
            return;
        }
        int retry = state.retries() + 1;
        RetryAfter after = Failure.cause(cause, RetryAfter.class);
        long delay = after == null ? policy.delay(retry, ThreadLocalRandom.current().nextInt(3)) : bounded(after.delay());
        if (retry > policy.retries()) {
            park(delivery, "exhausted", failure, policy);
        } else if (state.tooOld(policy, now, delay)) {
            park(delivery, "too-old", failure, policy);
        } else {
            store(delivery, () -> after == null ? planned(delay) : chosen(delay), copy -> wait -> copy.retry(retry, failure, wait.expiration));
            Retryrmq.LOGGER.info(attempt(delivery, policy) + " failed: " + failure + "; retry in " + Policy.show(delay));
        }
    }

    /** Parks a message that could not be prepared for its listener, unless what was thrown says otherwise. */
    void unreadable(Delivery delivery, Throwable thrown) {
        Throwable cause = own(thrown);
        if (Failure.chain(cause).stream().anyMatch(it -> it instanceof Park || it instanceof Defer || it instanceof RetryAfter
                || it instanceof AmqpRejectAndDontRequeueException)) {
            failed(delivery, thrown);
        } else {
            park(delivery, "undecodable", Failure.of(cause), options.retry);
        }
    }

    /** Brings back a message that was not run, with this number of crashes. */
    void detour(Delivery delivery, int crashes) {
        store(delivery, () -> planned(detour()), copy -> wait -> copy.detour(crashes, wait.expiration));
        Retryrmq.LOGGER.warn("a message of `" + queue + "` whose consumer crashed takes a detour: crashes so far " + crashes);
    }

    /** Parks a message whose consumers crash. */
    void crashed(Delivery delivery) {
        park(delivery, "delivery-limit", Failure.of("its consumer crashed " + delivery.state.crashes() + " times"), options.retry);
    }

    private void park(Delivery delivery, String reason, Failure failure, Policy policy) {
        if (options.park) {
            store(delivery, () -> hasParking() ? new Route(queue + ".parked", null) : null, copy -> wait -> copy.parked(reason, failure));
        }
        Retryrmq.LOGGER.warn(attempt(delivery, policy) + " failed: " + failure + "; " + (options.park ? "parked as " + reason
                : "given up as " + reason + " and dropped, because `park` is off"));
    }

    private String attempt(Delivery delivery, Policy policy) {
        String id = delivery.properties.getMessageId();
        return "attempt " + delivery.state.attempt() + " of " + (policy.retries() + 1) + " of " + (id == null ? "a message without id" : "message " + id)
                + " in " + queue;
    }

    /** The listener's own exception. A recoverer of Spring's local retries wraps it into one that asks for a rejection. */
    private static Throwable own(Throwable thrown) {
        Throwable own = Failure.unwrapped(thrown);
        while (own instanceof AmqpRejectAndDontRequeueException && Failure.cause(own.getCause(), ListenerExecutionFailedException.class) != null) {
            own = Failure.unwrapped(own.getCause());
        }
        return own;
    }

    /** Why a message is parked at once, or null. */
    private String reason(Throwable cause) {
        List<Throwable> chain = Failure.chain(cause);
        if (chain.stream().anyMatch(it -> it instanceof Park || it instanceof AmqpRejectAndDontRequeueException)) {
            return "requested";
        }
        if (chain.stream().anyMatch(it -> it instanceof MessageConversionException
                || it instanceof org.springframework.messaging.converter.MessageConversionException)) {
            return "undecodable";
        }
        if (chain.stream().anyMatch(it -> options.fatal.stream().anyMatch(type -> type.isInstance(it)))) {
            return "fatal";
        }
        return Failure.cause(cause, RetryAfter.class) == null && fatal.isFatal(new ListenerExecutionFailedException("", cause)) ? "fatal" : null;
    }

    private interface Way {
        Route find() throws IOException;
    }

    /**
     * Publishes a copy until the broker has confirmed that a queue took it. Only then its original may be acknowledged.
     *
     * @throws CopyNotStoredException after ten minutes, or when the original cannot be acknowledged any more
     */
    private void store(Delivery delivery, Way way, Function<Copy, Function<Route, BasicProperties>> stamp) {
        long deadline = System.nanoTime() + HELD_AT_MOST.toNanos();
        BooleanSupplier givenUp = () -> delivery.lost.getAsBoolean() || System.nanoTime() - deadline > 0;
        Exception why = null;
        for (long pause = 50;; pause = Math.min(pause * 2, 60_000)) {
            try {
                Route route = way.find();
                if (route != null && isSafe(route.queue, givenUp)) {
                    RetryState state = delivery.state;
                    Copy copy = new Copy(delivery.properties, state, delivery.exchange, delivery.routingKey, Retryrmq.HOST, options.appVersion,
                            System.currentTimeMillis() / 1000, broker.room());
                    Broker.Answer answer = broker.publish(route.queue, stamp.apply(copy).apply(route), delivery.body, givenUp);
                    if (answer == Broker.Answer.CONFIRMED) {
                        return;
                    }
                    why = new IOException("the broker's answer to the copy for `" + route.queue + "`: " + answer);
                    if (answer == Broker.Answer.RETURNED) {
                        broker.forget(route.queue);
                    }
                }
                sleep(pause, givenUp);
            } catch (IOException | RuntimeException failed) {
                why = failed;
                sleep(pause, givenUp);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
                throw new CopyNotStoredException("the listener container stopped before a message of `" + queue + "` was copied", why);
            }
            if (givenUp.getAsBoolean() || Thread.currentThread().isInterrupted()) {
                throw new CopyNotStoredException("a message of `" + queue + "` is requeued, because its copy could not be stored", why);
            }
        }
    }

    /** Waits until the queue is old enough; false if it was given up before. */
    private boolean isSafe(String name, BooleanSupplier givenUp) throws InterruptedException {
        while (true) {
            Long safe = broker.safeFrom(name);
            if (safe == null || givenUp.getAsBoolean()) {
                return false;
            }
            long left = safe - System.nanoTime();
            if (left <= 0) {
                return true;
            }
            TimeUnit.NANOSECONDS.sleep(Math.min(left, 100_000_000));
        }
    }

    private static void sleep(long millis, BooleanSupplier givenUp) {
        try {
            long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
            while (System.nanoTime() - end < 0 && !givenUp.getAsBoolean()) {
                TimeUnit.MILLISECONDS.sleep(Math.min(50, millis));
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private Route planned(long delay) throws IOException {
        return has(delay) ? new Route(name(delay), null) : instead(delay);
    }

    private Route chosen(long delay) throws IOException {
        long step = Policy.delayStep(delay);
        return has(step) ? new Route(name(step), step > delay ? delay : null) : instead(delay);
    }

    /** Another waiting queue, if the right one is not available; null if there is none, and the original is kept. */
    private Route instead(long delay) throws IOException {
        for (long longer : waits.tailSet(delay, true)) {
            if (has(longer)) {
                return new Route(name(longer), delay);
            }
        }
        for (long shorter : waits.headSet(delay, false).descendingSet()) {
            if (has(shorter)) {
                Retryrmq.LOGGER.warn("a message of `" + queue + "` comes back too early: no waiting queue is as long as " + Policy.show(delay));
                return new Route(name(shorter), null);
            }
        }
        return null;
    }

    private boolean has(long delay) throws IOException {
        boolean has = broker.hasWaiting(name(delay), waiting(delay), options.declare);
        if (has) {
            waits.add(delay);
        }
        return has;
    }

    private boolean hasParking() throws IOException {
        return broker.hasParking(queue + ".parked", Map.of("x-queue-type", "quorum", "x-delivery-limit", 1_000_000_000L), options.declare);
    }

    private Map<String, Object> waiting(long delay) {
        Map<String, Object> arguments = new TreeMap<>();
        arguments.put("x-queue-type", "quorum");
        arguments.put("x-message-ttl", delay);
        arguments.put("x-dead-letter-exchange", "");
        arguments.put("x-dead-letter-routing-key", queue);
        arguments.put("x-dead-letter-strategy", "at-least-once");
        arguments.put("x-overflow", "reject-publish");
        return arguments;
    }

    private String name(long delay) {
        return queue + ".retry." + delay;
    }

    private long detour() {
        java.util.SortedSet<Long> delays = options.retry.delays();
        return delays.isEmpty() || delays.first() > 1_000 ? DETOUR : delays.first();
    }

    private static long bounded(Duration delay) {
        return Math.max(1, Policy.ceilMillis(delay.compareTo(Policy.LONGEST) > 0 ? Policy.LONGEST : delay));
    }

    private static Map<String, Object> headers(BasicProperties properties) {
        return properties.getHeaders() == null ? Map.of() : properties.getHeaders();
    }
}

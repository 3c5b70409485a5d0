package io.github.retryrmq.spring;

import java.io.IOException;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.function.BooleanSupplier;

import com.rabbitmq.client.DefaultConsumer;
import org.springframework.amqp.rabbit.listener.AbstractMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.beans.DirectFieldAccessor;

/**
 * Has a container take one message at a time until it receives one that is no suspect: at its start, and from the next suspect on. A crash counts against
 * everything that its container holds, and only the message that crashes its consumer should be parked.
 */
final class Isolation {

    /** How many consumers a container has, at most, and how many messages each holds. */
    private record Load(int consumers, Integer most, int prefetch) {

        boolean isMore() {
            return consumers > 1 || most != null && most > 1;
        }

        Load alone() {
            return new Load(1, most == null ? null : 1, 1);
        }
    }

    private static final long AFTER_A_SUSPECT = TimeUnit.SECONDS.toNanos(10);
    /** As long as RabbitMQ, by default, leaves a message with a consumer. */
    private static final long UNTIL_ALL_HAVE_ENDED = TimeUnit.MINUTES.toMillis(30);

    private final AbstractMessageListenerContainer container;
    private final BooleanSupplier closing;
    private final DirectFieldAccessor fields;
    private final boolean direct;
    /** What the container had before it was told to take one message at a time. */
    private Load full;
    private boolean on;
    private boolean changing;
    private Long lastSuspect;

    /** The container has not been started. */
    Isolation(AbstractMessageListenerContainer container, BooleanSupplier closing) {
        this.container = container;
        this.closing = closing;
        fields = new DirectFieldAccessor(container);
        direct = container instanceof DirectMessageListenerContainer;
        full = load();
        on = full.isMore();
        // The prefetch of a consumer is fixed. The first one keeps 1; a container with more consumers adds them when all is well.
        set(full.alone());
    }

    private Load load() {
        return new Load((int) fields.getPropertyValue(direct ? "consumersPerQueue" : "concurrentConsumers"),
                direct ? null : (Integer) fields.getPropertyValue("maxConcurrentConsumers"), (int) fields.getPropertyValue("prefetchCount"));
    }

    /** Whether a suspect may run now; otherwise it takes a detour, until nothing else is held. */
    synchronized boolean admitsSuspect() {
        lastSuspect = System.nanoTime();
        if (!changing && load().isMore()) {
            on = true;
            change(this::restart);
        }
        return !changing;
    }

    /** There is a message that is no suspect. */
    synchronized void ordinary() {
        if (on && !changing && (lastSuspect == null || System.nanoTime() - lastSuspect > AFTER_A_SUSPECT)) {
            on = false;
            change(this::widen);
        }
    }

    /** On a thread of its own: stopping waits for the listener that asked for it. */
    private void change(Runnable how) {
        changing = true;
        Thread thread = new Thread(() -> {
            try {
                if (!closing.getAsBoolean() && container.isRunning()) {
                    how.run();
                }
            } catch (RuntimeException failed) {
                Retryrmq.LOGGER.error("the listener container could not be changed; start it again", failed);
            } finally {
                synchronized (this) {
                    changing = false;
                }
            }
        }, "retryrmq-isolation");
        thread.setDaemon(true);
        thread.start();
    }

    /** If somebody has chosen another number of consumers since, it is theirs. */
    private void widen() {
        Load now = load();
        boolean ours = now.consumers == full.alone().consumers && Objects.equals(now.most, full.alone().most);
        set(ours ? full : new Load(now.consumers, now.most, full.prefetch));
    }

    private void restart() {
        List<?> consumers = direct ? consumers() : List.of();
        Object timeout = fields.getPropertyValue("shutdownTimeout");
        Object forced = fields.getPropertyValue("forceStop");
        // A listener that runs may finish; what is only prefetched goes back.
        container.setShutdownTimeout(UNTIL_ALL_HAVE_ENDED);
        container.setForceStop(true);
        CountDownLatch ended = new CountDownLatch(1);
        try {
            container.stop(ended::countDown);
            // It counts as running, so that nobody else starts it meanwhile, and who stops it meanwhile leaves a trace.
            fields.setPropertyValue("running", true);
            consumers.forEach(Isolation::cancel);
            ended.await();
        } catch (InterruptedException never) {
            Thread.currentThread().interrupt();
        } finally {
            container.setShutdownTimeout((long) timeout);
            container.setForceStop((boolean) forced);
        }
        Load now = load();
        full = new Load(now.consumers, now.most, now.prefetch == 1 ? full.prefetch : now.prefetch);
        set(full.alone());
        boolean stopped = !container.isRunning();
        fields.setPropertyValue("running", false);
        if (!stopped && !closing.getAsBoolean()) {
            container.start();
        }
    }

    private List<?> consumers() {
        Lock lock = (Lock) fields.getPropertyValue("consumersLock");
        lock.lock();
        try {
            return List.copyOf((Collection<?>) fields.getPropertyValue("consumers"));
        } finally {
            lock.unlock();
        }
    }

    /** A direct container that is made to stop closes a consumer after its next message: one without messages would wait for one. */
    private static void cancel(Object consumer) {
        DefaultConsumer idle = (DefaultConsumer) consumer;
        try {
            if (idle.getChannel().isOpen()) {
                idle.getChannel().basicCancel(idle.getConsumerTag());
            }
        } catch (IOException | RuntimeException closed) {
            Retryrmq.LOGGER.debug("a consumer could not be cancelled: it has ended", closed);
        }
    }

    private void set(Load load) {
        container.setPrefetchCount(load.prefetch);
        if (container instanceof DirectMessageListenerContainer direct) {
            direct.setConsumersPerQueue(load.consumers);
        } else if (container instanceof SimpleMessageListenerContainer simple) {
            Integer most = full.most == null ? null : load.most == null ? Integer.valueOf(load.consumers) : load.most;
            if (most != null && most >= (int) fields.getPropertyValue("concurrentConsumers")) {
                simple.setMaxConcurrentConsumers(most);
            }
            simple.setConcurrentConsumers(load.consumers);
            if (most != null) {
                simple.setMaxConcurrentConsumers(most);
            }
        }
    }
}

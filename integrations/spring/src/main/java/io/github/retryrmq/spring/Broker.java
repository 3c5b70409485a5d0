package io.github.retryrmq.spring;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.Deque;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.ShutdownSignalException;
import org.springframework.amqp.rabbit.connection.AbstractConnectionFactory;
import org.springframework.amqp.rabbit.connection.ConnectionFactory;

/**
 * The connection on which copies are published, apart from the one that consumes: an alarm blocks it, and consuming and acknowledging go on. Knows which
 * queues it found there, and since when.
 */
final class Broker {

    /** If a quorum queue is younger when its broker is killed, it can come back empty, without messages that were confirmed. */
    static final long SAFE_AGE = TimeUnit.SECONDS.toNanos(2);
    private static final long TRY_AGAIN = TimeUnit.MINUTES.toNanos(1);
    private static final int PATIENCE_SECONDS = 30;

    enum Answer { CONFIRMED, RETURNED, REFUSED, NONE }

    enum Kind { CLASSIC, QUORUM, STREAM, UNKNOWN }

    private record Confirming(Channel channel, AtomicBoolean returned) {
    }

    private final ConnectionFactory factory;
    /** What waits for the broker has a lock of its own, which no thread waits for without end. */
    private final Lock connecting = new ReentrantLock();
    private final Map<String, Lock> asking = new ConcurrentHashMap<>();
    private volatile Session session;

    /**
     * An open connection, and what was found on it. On another one it counts no more: its broker may have been killed since.
     *
     * @param borrowed is given back when the connection has ended; each one that the factory gives may be another connection
     * @param found since when a queue is known, by its name, in nanoseconds of this process
     * @param refused until when a queue is not asked for again
     */
    private record Session(org.springframework.amqp.rabbit.connection.Connection borrowed, Connection connection, Map<String, Long> found,
            Map<String, Long> refused, Deque<Confirming> idle) {
    }

    Broker(ConnectionFactory factory) {
        ConnectionFactory publishing = factory instanceof AbstractConnectionFactory own ? own.getPublisherConnectionFactory() : null;
        this.factory = publishing == null ? factory : publishing;
    }

    private Session session() throws IOException {
        Session known = session;
        if (known != null && known.connection.isOpen()) {
            return known;
        }
        lock(connecting, "the connection to the broker");
        try {
            if (session == known) {
                session = null;
                if (known != null) {
                    known.borrowed.close();
                }
                session = open();
            }
            return session;
        } finally {
            connecting.unlock();
        }
    }

    private Session open() {
        var borrowed = factory.createConnection();
        Connection connection = borrowed.getDelegate();
        if (connection == null) {
            borrowed.close();
            throw new IllegalStateException("the connection factory gives no connection of the RabbitMQ client; use a CachingConnectionFactory");
        }
        return new Session(borrowed, connection, new ConcurrentHashMap<>(), new ConcurrentHashMap<>(), new ConcurrentLinkedDeque<>());
    }

    private static void lock(Lock lock, String what) throws IOException {
        try {
            if (!lock.tryLock(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
                throw new IOException("another thread waits for " + what);
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while another thread waits for " + what);
        }
    }

    /** Publishes through the default exchange, and waits for the broker's answer; {@code NONE} if it was given up before that. */
    Answer publish(String queue, BasicProperties properties, byte[] body, BooleanSupplier givenUp) throws IOException, InterruptedException {
        Session open = session();
        if (!open.found.containsKey(queue)) {
            throw new IOException("the connection is a new one, on which `" + queue + "` is not known yet");
        }
        Confirming lane = lane(open);
        lane.returned.set(false);
        boolean clean = false;
        try {
            lane.channel.basicPublish("", queue, true, properties, body);
            while (!givenUp.getAsBoolean()) {
                try {
                    if (!lane.channel.waitForConfirms(100)) {
                        return Answer.REFUSED;
                    }
                    clean = true;
                    return lane.returned.get() ? Answer.RETURNED : Answer.CONFIRMED;
                } catch (TimeoutException notYet) {
                    // Asked again, as long as somebody waits for the answer.
                }
            }
            return Answer.NONE;
        } finally {
            if (clean) {
                open.idle.push(lane);
            } else {
                abort(lane.channel);
            }
        }
    }

    private static Confirming lane(Session open) throws IOException {
        for (Confirming lane = open.idle.poll(); lane != null; lane = open.idle.poll()) {
            if (lane.channel.isOpen()) {
                return lane;
            }
        }
        Channel channel = channel(open.connection);
        AtomicBoolean returned = new AtomicBoolean();
        // There is one copy at a time on each channel, and the return comes before the confirm.
        channel.addReturnListener(unroutable -> returned.set(true));
        channel.confirmSelect();
        return new Confirming(channel, returned);
    }

    private static Channel channel(Connection connection) throws IOException {
        Channel channel = connection.createChannel();
        if (channel == null) {
            throw new IOException("no channel is left on the connection; raise `channel-max`");
        }
        return channel;
    }

    /** Whether this waiting queue exists with exactly these arguments; it is declared if {@code declare} is on. */
    boolean hasWaiting(String queue, Map<String, Object> arguments, boolean declare) throws IOException {
        return has(queue, channel -> {
            if (declare) {
                channel.queueDeclare(queue, true, false, false, arguments);
            } else {
                channel.queueDeclarePassive(queue);
            }
        });
    }

    /** Whether this parking queue exists, whatever its arguments; it is declared if it does not and {@code declare} is on. */
    boolean hasParking(String queue, Map<String, Object> arguments, boolean declare) throws IOException {
        if (has(queue, channel -> channel.queueDeclarePassive(queue))) {
            return true;
        }
        if (declare && exists(queue) == Boolean.FALSE) {
            session().refused.remove(queue);
            return has(queue, channel -> channel.queueDeclare(queue, true, false, false, arguments));
        }
        return false;
    }

    private interface Question {
        void ask(Channel channel) throws IOException;
    }

    private boolean has(String queue, Question question) throws IOException {
        Session open = session();
        if (open.found.containsKey(queue)) {
            return true;
        }
        Lock lock = asking.computeIfAbsent(queue, name -> new ReentrantLock());
        lock(lock, "the queue `" + queue + "`");
        try {
            Long again = open.refused.get(queue);
            if (open.found.containsKey(queue)) {
                return true;
            }
            if (again != null && System.nanoTime() - again < 0) {
                return false;
            }
            String refusal = refusal(open.connection, question);
            if (refusal == null) {
                open.found.put(queue, System.nanoTime());
                open.refused.remove(queue);
                return true;
            }
            open.refused.put(queue, System.nanoTime() + TRY_AGAIN);
            Retryrmq.LOGGER.warn("the queue `" + queue + "` cannot be used: " + refusal);
            return false;
        } finally {
            lock.unlock();
        }
    }

    private Boolean exists(String queue) throws IOException {
        String refusal = refusal(session().connection, channel -> channel.queueDeclarePassive(queue));
        return refusal == null ? Boolean.TRUE : refusal.startsWith("404") ? Boolean.FALSE : null;
    }

    /** Asks on a channel of its own, because a refusal closes it. Null if the broker did not refuse. */
    private static String refusal(Connection open, Question question) throws IOException {
        Channel channel = channel(open);
        try {
            question.ask(channel);
            return null;
        } catch (IOException | AlreadyClosedException answer) {
            ShutdownSignalException signal = answer instanceof AlreadyClosedException closed ? closed
                    : Failure.cause(answer, ShutdownSignalException.class);
            if (signal == null || signal.isHardError() || !(signal.getReason() instanceof AMQP.Channel.Close close)) {
                throw answer instanceof IOException io ? io : new IOException(answer);
            }
            return close.getReplyCode() + " " + close.getReplyText();
        } finally {
            abort(channel);
        }
    }

    /** The type of a queue, which the broker names when it refuses an argument that no consumer may have. Leaves no trace. */
    Kind kind(String queue) throws IOException {
        String refusal = refusal(session().connection, channel -> {
            channel.basicQos(0); // a node can have another default, and then a stream would be consumed
            String tag = channel.basicConsume(queue, false, "", false, false, Map.of("x-stream-offset", "next"), new DefaultConsumer(channel));
            channel.basicCancel(tag);
        });
        if (refusal == null) {
            return Kind.UNKNOWN;
        }
        String named = refusal.substring(refusal.lastIndexOf("of queue type ") + 1);
        return refusal.contains("prefetch count is not set") ? Kind.STREAM
                : named.contains("rabbit_classic_queue") ? Kind.CLASSIC : named.contains("rabbit_quorum_queue") ? Kind.QUORUM : Kind.UNKNOWN;
    }

    /** Why messages in an existing queue are not safe: it is deleted with its last consumer, or with a connection. Null if they are. Leaves no trace. */
    String flaw(String queue) throws IOException {
        // If there is no such queue, these arguments are refused, and none is created.
        Map<String, Object> impossible = Map.of("x-queue-type", "quorum", "x-max-length", -1);
        for (boolean durable : new boolean[] {true, false}) {
            String refusal = refusal(session().connection, channel -> channel.queueDeclare(queue, durable, false, false, impossible));
            if (refusal == null || !refusal.contains("inequivalent arg 'durable'")) {
                return refusal == null ? null : refusal.startsWith("405") ? "exclusive" : refusal.contains("inequivalent arg 'auto_delete'")
                        ? "auto-delete" : null;
            }
        }
        return null;
    }

    /** From when on a message in this queue survives a crash of its broker, or null if the queue is not known on this connection. */
    Long safeFrom(String queue) {
        Session known = session;
        Long since = known == null || !known.connection.isOpen() ? null : known.found.get(queue);
        return since == null ? null : since + SAFE_AGE;
    }

    void forget(String queue) {
        Session known = session;
        if (known != null) {
            known.found.remove(queue);
            known.refused.remove(queue);
        }
    }

    /** The bytes that the headers and properties of a copy may take. */
    int room() throws IOException {
        int most = session().connection.getFrameMax();
        int frame = most == 0 ? 131_072 : most;
        return frame - Math.min(frame / 8, 2_048);
    }

    private static void abort(Channel channel) {
        try {
            channel.abort();
        } catch (IOException | RuntimeException alreadyGone) {
            // There is nothing left to close.
        }
    }
}

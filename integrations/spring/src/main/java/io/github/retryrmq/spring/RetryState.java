package io.github.retryrmq.spring;

import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Date;
import java.util.List;
import java.util.Map;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.LongString;

/**
 * What the headers of a message say about its past (chapter 5 of the wire contract). Any publisher may have written them: what cannot be believed counts as
 * absent.
 *
 * @param own the crashes that our own header counts
 * @param counted the crashes that its queue counts
 * @param uncountedCrash a consumer held it before, and no count that can be believed includes that
 * @param firstFailedAt seconds since 1970, or null
 * @param publishedAt seconds since 1970, or null
 * @param exchange where it was first published, or null if this is not our copy
 */
record RetryState(int retries, int deferrals, int own, int counted, boolean uncountedCrash, Long firstFailedAt, Long publishedAt, String exchange,
        String routingKey) {

    /** Larger counts are forged or broken: no policy comes near. */
    private static final long MOST = 1_000_000;
    /** The end of the year 9999. */
    private static final long LAST = 253_402_300_799L;

    /** From so many crashes on, a message may be the one that crashes its consumers. */
    static final int SUSPECT = 3;

    /** What may follow a delivery, before its listener sees it (chapter 6). */
    enum Admission { RUN, RUN_ALONE, DETOUR, PARK }

    static RetryState read(String queue, boolean redelivered, boolean classic, BasicProperties properties) {
        Map<String, Object> headers = properties.getHeaders() == null ? Map.of() : properties.getHeaders();
        Integer count = count(headers, "x-retry-count");
        Integer deaths = rejections(headers, queue);
        Integer deliveries = redelivered && !classic ? count(headers, "x-delivery-count") : null;
        int own = or(count(headers, "x-retry-crashes"), 0);
        boolean replayed = headers.containsKey("x-retry-replays");
        int retries = or(count, or(deaths, or(replayed ? null : count(headers, "x-retries"), 0)));
        boolean foreign = !headers.containsKey("x-retry-protocol")
                && (or(deliveries, 0) > 1 || headers.containsKey("x-death") && deaths == null);
        boolean uncounted = redelivered && (classic || foreign || deliveries == null && !headers.containsKey("x-acquired-count"));
        int deferrals = or(count(headers, "x-retry-deferrals"), 0);
        boolean handled = count != null || deferrals > 0 || own > 0 || or(count(headers, "x-retry-replays"), 0) > 0;
        boolean copied = handled || headers.containsKey("x-retry-walk");
        Date published = properties.getTimestamp();
        return new RetryState(retries, deferrals, own, or(deliveries, 0), uncounted, time(headers.get("x-retry-first-failed-at")),
                published == null ? null : published.getTime() / 1000, copied ? text(headers.get("x-retry-exchange")) : null,
                copied ? text(headers.get("x-retry-routing-key")) : null);
    }

    int attempt() {
        return retries + 1;
    }

    int crashes() {
        return own + counted;
    }

    Admission admit(int crashLimit) {
        if (counted >= 2 && !uncountedCrash) {
            return Admission.DETOUR;
        }
        if (own >= crashLimit) {
            return Admission.PARK;
        }
        if (uncountedCrash) {
            return Admission.DETOUR;
        }
        if (crashes() >= crashLimit) {
            return Admission.PARK;
        }
        return crashes() >= SUSPECT ? Admission.RUN_ALONE : Admission.RUN;
    }

    /** The crashes that a detour writes. A count of the queue that may not be true makes a suspect at most. */
    int crashesOfDetour() {
        if (!uncountedCrash) {
            return crashes();
        }
        return counted > 0 ? Math.max(Math.min(crashes(), SUSPECT), own) : own + 1;
    }

    /** Whether the next attempt, after {@code delay} ms, would come later than the policy allows. */
    boolean tooOld(Policy policy, long now, long delay) {
        if (policy.maxAge() == null) {
            return false;
        }
        Long since = firstFailedAt;
        // A broker may stamp each copy. Nothing fails before it is published.
        if (policy.agesFromPublication() && publishedAt != null && (since == null || publishedAt < since)) {
            since = publishedAt;
        }
        // AMQP times are whole seconds, so the age counts from the end of the second: rounding never parks a message early.
        long age = since == null ? 0 : Math.max(0, now - since - 1);
        return policy.maxAge().compareTo(java.time.Duration.ofSeconds(age).plusMillis(delay)) < 0;
    }

    static Integer count(Map<?, ?> headers, String name) {
        Object value = headers.get(name);
        boolean integer = value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long;
        long number = integer ? ((Number) value).longValue() : -1;
        return number >= 0 && number <= MOST ? Integer.valueOf((int) number) : null;
    }

    private static Integer rejections(Map<String, Object> headers, String queue) {
        if (headers.get("x-death") instanceof List<?> deaths) {
            for (Object death : deaths) {
                if (death instanceof Map<?, ?> entry && queue.equals(text(entry.get("queue"))) && "rejected".equals(text(entry.get("reason")))) {
                    return count(entry, "count");
                }
            }
        }
        return null;
    }

    static Long time(Object value) {
        long seconds = value instanceof Date date ? date.getTime() / 1000 : value instanceof Number number ? number.longValue() : -1;
        return seconds >= 0 && seconds <= LAST ? Long.valueOf(seconds) : null;
    }

    /** A string, or bytes that are valid UTF-8; otherwise null. */
    static String text(Object value) {
        byte[] bytes = value instanceof LongString string ? string.getBytes() : value instanceof byte[] array ? array : null;
        if (bytes == null) {
            return value instanceof String string ? string : null;
        }
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(java.nio.ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException notText) {
            return null;
        }
    }

    private static int or(Integer value, int otherwise) {
        return value == null ? otherwise : value;
    }
}

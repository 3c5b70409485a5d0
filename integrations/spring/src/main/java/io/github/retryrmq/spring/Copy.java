package io.github.retryrmq.spring;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.impl.Frame;

/** Writes the properties of a copy: what the next consumer, and a person who looks at a parking queue, will know (chapter 4 of the wire contract). */
record Copy(BasicProperties original, RetryState state, String exchange, String routingKey, String host, String appVersion, long now, int room) {

    static final String DIRECT_REPLY_TO = "amq.rabbitmq.reply-to";
    private static final Set<String> OF_ONE_COPY = Set.of("x-retry-parked-at", "x-retry-parked-reason", "x-retry-error-stack", "x-retry-fingerprint",
            "x-retry-handover", "x-retry-queue", "x-retry-after");
    private static final Set<String> OF_THE_BROKER = Set.of("CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count");
    private static final Set<String> OURS = Set.of("x-retry-count", "x-retry-deferrals", "x-retry-crashes", "x-retry-first-failed-at", "x-retry-error",
            "x-retry-error-type", "x-retry-history", "x-retry-exchange", "x-retry-routing-key", "x-retry-user-id", "x-retry-expiration",
            "x-retry-reply-to", "x-retry-headers-cut", "x-retry-protocol", "x-retry-replays", "x-retry-walk");

    /** The copy that waits for retry number {@code retry}. */
    BasicProperties retry(int retry, Failure failure, Long expiration) {
        Map<String, Object> headers = headers();
        headers.remove("x-retry-crashes");
        headers.put("x-retry-count", (long) retry);
        fail(headers, failure);
        return waiting(headers, expiration);
    }

    BasicProperties deferral(Long expiration) {
        Map<String, Object> headers = headers();
        headers.put("x-retry-count", (long) state.retries());
        headers.put("x-retry-deferrals", state.deferrals() + 1L);
        headers.remove("x-retry-crashes");
        return waiting(headers, expiration);
    }

    BasicProperties detour(int crashes, Long expiration) {
        Map<String, Object> headers = headers();
        headers.put("x-retry-count", (long) state.retries());
        headers.put("x-retry-crashes", (long) crashes);
        return waiting(headers, expiration);
    }

    BasicProperties parked(String reason, Failure failure) {
        Map<String, Object> headers = headers();
        headers.put("x-retry-count", (long) state.retries());
        fail(headers, failure);
        headers.put("x-retry-fingerprint", Failure.fingerprint(failure.type(), failure.error()));
        if (failure.stack() != null) {
            headers.put("x-retry-error-stack", Failure.cut(failure.stack(), 16 * 1024));
        }
        if (state.crashes() > 0) {
            headers.put("x-retry-crashes", (long) state.crashes());
        }
        headers.put("x-retry-parked-at", new Date(now * 1000));
        headers.put("x-retry-parked-reason", reason);
        return carried().headers(fit(headers)).build();
    }

    /** The message's own headers, without the broker's and those of an earlier parking, and what each copy has. */
    private Map<String, Object> headers() {
        Map<String, Object> headers = new TreeMap<>();
        Map<String, Object> before = original.getHeaders() == null ? Map.of() : original.getHeaders();
        before.forEach((name, value) -> {
            boolean broker = OF_THE_BROKER.contains(name) || name.startsWith("x-first-death-") || name.startsWith("x-last-death-");
            if (!broker && !OF_ONE_COPY.contains(name)) {
                headers.put(name, value);
            }
        });
        // Of a text that was cut, no later copy could compute the fingerprint.
        String alike = RetryState.text(before.get("x-retry-fingerprint"));
        boolean failed = before.containsKey("x-retry-error") || state.retries() > 0;
        if (alike != null && failed && !before.containsKey("x-retry-parked-reason") && alike.matches("[0-9a-fA-F]{16}")
                && !alike.equals(fingerprint(before))) {
            headers.put("x-retry-fingerprint", alike);
        }
        headers.put("x-retry-protocol", 1L);
        headers.put("x-retry-exchange", exchange);
        headers.put("x-retry-routing-key", routingKey);
        if (original.getUserId() != null) {
            headers.put("x-retry-user-id", original.getUserId());
        }
        if (original.getExpiration() != null) {
            headers.put("x-retry-expiration", original.getExpiration());
        }
        if (DIRECT_REPLY_TO.equals(original.getReplyTo())) {
            headers.put("x-retry-reply-to", DIRECT_REPLY_TO);
        }
        return headers;
    }

    private void fail(Map<String, Object> headers, Failure failure) {
        String error = Failure.cut(failure.error(), 1024);
        String type = Failure.cut(failure.type(), 255);
        headers.put("x-retry-first-failed-at", new Date((state.firstFailedAt() == null ? now : state.firstFailedAt()) * 1000));
        headers.put("x-retry-error", error);
        if (type.isEmpty()) {
            headers.remove("x-retry-error-type");
        } else {
            headers.put("x-retry-error-type", type);
        }
        headers.remove("x-retry-fingerprint");
        if (!error.equals(failure.error()) || !type.equals(failure.type())) {
            headers.put("x-retry-fingerprint", Failure.fingerprint(failure.type(), failure.error()));
        }
        headers.put("x-retry-history", history(headers.get("x-retry-history"), error));
    }

    /** The newest ten failures that take less than 8 KiB, oldest first. */
    private List<Map<String, Object>> history(Object before, String error) {
        List<Map<String, Object>> newestFirst = new ArrayList<>();
        newestFirst.add(entry(state.attempt(), now, error, host, appVersion));
        List<?> older = before instanceof List<?> list ? list : List.of();
        for (int index = older.size() - 1; index >= 0; index--) {
            if (older.get(index) instanceof Map<?, ?> entry && RetryState.count(entry, "attempt") != null && RetryState.time(entry.get("at")) != null) {
                newestFirst.add(entry(RetryState.count(entry, "attempt"), RetryState.time(entry.get("at")), orEmpty(entry.get("error")),
                        orEmpty(entry.get("host")), orEmpty(entry.get("app-version"))));
            }
        }
        List<Map<String, Object>> kept = new ArrayList<>();
        int left = 8 * 1024;
        for (Map<String, Object> entry : newestFirst) {
            left -= size(entry);
            if (left < 0 || kept.size() == 10) {
                break;
            }
            kept.add(0, entry);
        }
        return kept;
    }

    private static Map<String, Object> entry(int attempt, long at, String error, String host, String appVersion) {
        Map<String, Object> entry = new TreeMap<>();
        entry.put("attempt", (long) attempt);
        entry.put("at", new Date(at * 1000));
        entry.put("error", error);
        entry.put("host", Failure.cut(host, 255));
        entry.put("app-version", Failure.cut(appVersion, 255));
        return entry;
    }

    private BasicProperties waiting(Map<String, Object> headers, Long expiration) {
        if (headers.containsKey("x-retry-error") && !headers.containsKey("x-retry-fingerprint") && size(headers) > room - names()) {
            headers.put("x-retry-fingerprint", fingerprint(headers));
        }
        return carried().headers(fit(headers)).expiration(expiration == null ? null : expiration.toString()).build();
    }

    /** All properties of the original, except those that a broker would refuse and the one that would end a wait early. */
    private BasicProperties.Builder carried() {
        return original.builder().deliveryMode(2).userId(null).expiration(null)
                .replyTo(DIRECT_REPLY_TO.equals(original.getReplyTo()) ? null : original.getReplyTo());
    }

    /** The bytes that the other properties take. */
    private int names() {
        int bytes = 0;
        for (String name : new String[] {original.getContentType(), original.getContentEncoding(), original.getCorrelationId(), original.getReplyTo(),
                original.getMessageId(), original.getType(), original.getAppId(), original.getClusterId()}) {
            bytes += name == null ? 0 : 1 + name.getBytes(StandardCharsets.UTF_8).length;
        }
        return bytes;
    }

    /** Leaves out what does not fit into one frame: stack, history, error, then the message's own headers, largest first. */
    private Map<String, Object> fit(Map<String, Object> headers) {
        int budget = room - names();
        for (String ours : List.of("x-retry-error-stack", "x-retry-history", "x-retry-error")) {
            if (size(headers) <= budget) {
                return headers;
            }
            headers.remove(ours);
        }
        if (size(headers) > budget) {
            headers.put("x-retry-headers-cut", true);
            List<String> largest = new ArrayList<>(headers.keySet());
            Comparator<String> ownFirst = Comparator.comparing(name -> OURS.contains(name) || OF_ONE_COPY.contains(name));
            Map<String, Integer> sizes = new HashMap<>();
            largest.forEach(name -> sizes.put(name, -size(java.util.Collections.singletonMap(name, headers.get(name)))));
            largest.sort(ownFirst.thenComparing(sizes::get));
            for (String name : largest) {
                if (size(headers) <= budget) {
                    break;
                }
                headers.remove(name);
            }
        }
        return headers;
    }

    private static int size(Map<String, Object> headers) {
        try {
            return 4 + (int) Frame.tableSize(headers);
        } catch (java.io.UnsupportedEncodingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static String fingerprint(Map<String, Object> headers) {
        return Failure.fingerprint(orEmpty(headers.get("x-retry-error-type")), orEmpty(headers.get("x-retry-error")));
    }

    private static String orEmpty(Object value) {
        String text = RetryState.text(value);
        return text == null ? "" : text;
    }
}
